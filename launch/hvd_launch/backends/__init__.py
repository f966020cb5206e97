"""The MPI libraries, a module for each; their detection, and the commands that start ranks."""
