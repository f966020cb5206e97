"""How fast samples are loaded."""
