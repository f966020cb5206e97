"""The lines that processes of this machine run."""
