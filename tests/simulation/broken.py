"""What a simulation says when a promise does not hold."""


class Broken(AssertionError):
    """An invariant does not hold."""
