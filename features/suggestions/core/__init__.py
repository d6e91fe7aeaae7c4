"""Pure functions that search for changes of requests."""
