"""What the bundled trainers share: ranks that fail together, whole files, progress."""
