"""Training with compressed gradients."""
