"""Programs that none of the rules was written for."""
