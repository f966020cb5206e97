"""Jobs, journal and statistics that both kinds of tuning share."""
