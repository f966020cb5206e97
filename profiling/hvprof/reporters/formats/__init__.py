"""Data for other programs: JSON, CSV, Perfetto, Prometheus, OpenTelemetry."""
