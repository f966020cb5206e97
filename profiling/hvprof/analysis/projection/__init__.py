"""What the next sizes will give, from sizes that were measured."""
