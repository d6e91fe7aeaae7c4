"""Moves that wait for a host."""
