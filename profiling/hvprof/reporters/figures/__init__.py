"""The figures of a page, by what they are about."""
