"""Moves the database of a running berth to another PostgreSQL server."""
