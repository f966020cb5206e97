"""Published scaling tables, forecast from their smaller sizes."""
