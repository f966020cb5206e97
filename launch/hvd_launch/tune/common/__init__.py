"""What both kinds of tuning share: jobs, the journal, and how sure a gain is."""
