"""Reports as a page that needs neither scripts nor a network."""
