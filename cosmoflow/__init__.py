"""CosmoFlow: the parameters of a universe from the matter that fills a cube of it."""
