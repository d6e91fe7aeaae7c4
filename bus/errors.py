"""What may go wrong on the bus: what a handler raises, or in a list form returns, to say its message's fate.

What each of them leads to is decided in `bus.delivery`.
"""

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # raised for bytes that are not JSON


class Retry(Exception):
    """Not now: deliver it again after so many seconds."""

    def __init__(self, after: float, why: str = "") -> None:
        super().__init__(why or f"again in {after} s")
        self.after = after


class Poison(Exception):
    """Never: to the dead-letter queue, with this sentence."""


class Unavailable(Exception):
    """Something we depend on is away. The message waits and comes again; it never counts as a bug."""


class NoAnswer(Unavailable):
    """Nobody answered the question in time."""


class Unroutable(Exception):
    """No queue hears this key."""


class BrokerRefused(Exception):
    """The broker will not do this for us; the text says what to do about it."""


class AnswerRefused(Exception):
    """The one who was asked could not take the question; the text says why."""


class NoSuchLetter(Exception):
    """There is no dead letter of this id, or none any more."""


class TooBig(ValueError):
    """A message larger than the bus carries."""


class Undecodable(ValueError):
    """Bytes that are no message; the text names the field."""


class MigrationsBroken(Exception):
    """A store's files do not make one line of revisions, or its database is not on it; the text says how."""
