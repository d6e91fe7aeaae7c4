"""Capacity for which requests wait, in samples of the capacity."""
