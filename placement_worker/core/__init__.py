"""Decisions of placement as pure functions: without SQL, clock and randomness."""
