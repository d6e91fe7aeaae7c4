"""Capacity plans in `berth request what-if`."""
