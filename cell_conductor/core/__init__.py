"""Pure functions that decide how builds and moves continue, without I/O, clock or random numbers."""
