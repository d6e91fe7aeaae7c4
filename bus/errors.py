"""Exceptions of the bus. If a handler raises or returns one, `bus.delivery.settling` decides whether its
message is handled again.
"""

from collections.abc import Collection

import msgspec

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # raised for bytes that are not JSON


class Retry(Exception):
    """Raised by a handler to receive its message again after the given seconds."""

    def __init__(self, after: float, why: str = "") -> None:
        super().__init__(why or f"retry in {after} s")
        self.after = after


class Poison(Exception):
    """Raised by a handler to move its message to the dead letters, with this reason: a retry cannot help."""


class Unavailable(Exception):
    """A service is unreachable. A message is retried without a limit if its handler raises this error; a
    query is refused, and the requester repeats it.
    """


class Unconfirmed(Unavailable):
    """Messages for clients were not confirmed in time, because a queue that a client declared takes none.

    `ids`: their ids; `causes`: the ids of the messages that caused them. All other messages of the call are
    confirmed.
    """

    def __init__(
        self, keys: Collection[str], *, ids: Collection[str] = (), causes: Collection[str] = ()
    ) -> None:
        super().__init__(f"a queue that another program declared does not confirm {', '.join(sorted(keys))}")
        self.ids, self.causes = frozenset(ids), frozenset(causes)


class BadCredentials(Unavailable):
    """The broker rejects our user name or password; a retry will not help."""


class NoAnswer(Unavailable):
    """A query was not answered in time."""


class Unroutable(Exception):
    """A message cannot be delivered, because no queue is bound to its routing key."""


class BrokerRefused(Exception):
    """The broker refused an operation; the text gives the broker's reason."""


class AnswerRefused(Exception):
    """The worker that received a query could not answer it; the text is the reason."""


class AnswerUnreadable(AnswerRefused):
    """The answer to a query is invalid, so the caller does not know what the worker has done."""


UNANSWERED = (Unavailable, Unroutable, AnswerRefused)  # a query without an answer raises one of these


class OperationRefused(Exception):
    """An operation that an operator requested was not done; the text gives the reason."""


class NoSuchLetter(Exception):
    """No dead letter has the given id."""


class TooBig(ValueError):
    """A message is larger than the bus permits."""


class Undecodable(ValueError):
    """Received bytes are not a valid message of the topic or query; the text gives the reason."""


class MigrationsBroken(Exception):
    """The migration files are not one sequence, or the database has a revision that none of them made."""
