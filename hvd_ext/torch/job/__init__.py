"""From hvd.init() to hvd.shutdown()."""
