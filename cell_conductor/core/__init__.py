"""Pure decisions about builds, without I/O, clock or randomness."""
