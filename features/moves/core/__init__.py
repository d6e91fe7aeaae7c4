"""Pure functions that decide how a move continues, without I/O, clock or random numbers."""
