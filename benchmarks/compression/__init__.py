"""The exchange of compressed gradients."""
