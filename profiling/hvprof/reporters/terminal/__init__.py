"""Reports as tables and text on a terminal."""
