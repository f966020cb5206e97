"""How fast are the collectives, compared with Gloo and with the MPI library?"""
