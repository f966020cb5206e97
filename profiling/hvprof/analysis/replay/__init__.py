"""What a step would take over another network: the trace replayed with other exchanges."""
