"""Programs whose cause of communication cost is known, for hvprof's verdict."""
