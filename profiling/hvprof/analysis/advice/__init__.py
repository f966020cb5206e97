"""What to try next: each piece of advice with its evidence and the most it can bring."""
