"""Decisions of the scheduler as pure functions: they replay from a log line."""
