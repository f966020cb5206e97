"""What is learnt when gradients are compressed."""
