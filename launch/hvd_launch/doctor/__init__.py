"""hvd-launch doctor: observes a machine, and reports problems."""
