"""Server groups of Nova."""
