"""Runs workers on any broker: delivers each message at least once to the handler in the worker's table."""
