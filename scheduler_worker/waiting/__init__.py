"""Stores waiting requests, wakes them when a host may fit, and publishes their results."""
