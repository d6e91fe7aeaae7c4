"""All SQL statements of placement."""
