"""What placement decides: pure, no SQL, no clock, no chance."""
