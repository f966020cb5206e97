"""Changes to try next, each with its evidence and its largest possible gain."""
