"""The state of a running job and the cause of a hang, read from the files that ranks map."""
