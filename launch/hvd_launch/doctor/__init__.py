"""hvd-launch doctor: looks at a machine, and judges what it saw."""
