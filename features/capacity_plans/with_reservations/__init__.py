"""Held capacity in capacity plans."""
