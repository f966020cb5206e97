"""Code that runs inside a rank: its visible GPUs, and the report of its output and end."""
