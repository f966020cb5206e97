"""What follows from a recording; nothing here draws or prints."""
