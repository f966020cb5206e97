"""Programs of the corpus as their advice would have them: the same work, done differently."""
