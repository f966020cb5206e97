"""How wrong is the simulated cluster, and how do hvd_ext's algorithms scale on it?"""
