"""The MPI libraries: a module each, how they are found, and the commands that start ranks."""
