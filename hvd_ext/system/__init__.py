"""The machine that a process runs on: its files, child processes and memory."""
