"""The sections of a report's page, a module each: section(page) gives its figures and tables."""
