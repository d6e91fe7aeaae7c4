"""Exceptions of the bus, raised or returned by handlers; `bus.delivery.verdicts` decides what happens to the
message then.
"""

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # raised for bytes that are not JSON


class Retry(Exception):
    """Deliver the handled message again after the given seconds."""

    def __init__(self, after: float, why: str = "") -> None:
        super().__init__(why or f"retry in {after} s")
        self.after = after


class Poison(Exception):
    """Move the handled message to the dead letters, with this reason: it can never be handled."""


class Unavailable(Exception):
    """A service is unreachable. The message is retried without a limit, and not counted as a fault."""


class NoAnswer(Unavailable):
    """A query was not answered in time."""


class Unroutable(Exception):
    """No queue is bound to this routing key."""


class BrokerRefused(Exception):
    """The broker refused an operation; the text says how to fix that."""


class AnswerRefused(Exception):
    """The worker that received a query could not answer it; the text says why."""


class OperationRefused(Exception):
    """An operation that an operator requested was not done; the text gives the reason."""


class NoSuchLetter(Exception):
    """The dead letter of this id does not exist."""


class TooBig(ValueError):
    """The message is larger than the bus permits."""


class Undecodable(ValueError):
    """The bytes are not a valid message; the text names the wrong field."""


class MigrationsBroken(Exception):
    """The migrations are no single sequence, or the database has an unknown revision; the text says which."""
