"""What recording costs."""
