"""The sections of a report's page, each a module: section(page) returns figures and tables."""
