"""An analysis as text, HTML, JSON, CSV or a trace for Perfetto."""
