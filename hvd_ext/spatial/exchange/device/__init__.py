"""Exchanges of tensors on GPUs: straight into a neighbor's memory, or through pinned memory."""
