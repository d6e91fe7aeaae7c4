"""The decisions about a build: no I/O, no clock, no chance."""
