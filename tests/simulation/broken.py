"""The error of a simulation in which a guarantee was violated."""


class Broken(AssertionError):
    """An invariant does not hold."""
