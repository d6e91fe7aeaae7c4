"""Pure decisions of placement: no SQL, no clock, no randomness."""
