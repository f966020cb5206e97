"""hvd-launch run: starts a job, passes its output on, and ends all of it."""
