"""Time of a step over another network: the trace replayed with other exchanges."""
