"""CosmoFlow: estimates the parameters of a universe from the matter in a cube of it."""
