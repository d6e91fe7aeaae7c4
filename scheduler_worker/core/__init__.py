"""The scheduler's decisions as pure functions, so that a decision can be computed again from a log line."""
