"""Capacity plans in `berth what-if`."""
