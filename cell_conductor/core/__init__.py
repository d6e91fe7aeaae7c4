"""Pure decisions about builds: no I/O, no clock, no randomness."""
