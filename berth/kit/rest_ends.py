"""The rules by which the REST API stores the ends of requests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# The reply address of all requests over HTTP. A client's address begins with its name, so never with _.
REPLY_TO = "_rest"


@dataclass(frozen=True, kw_only=True)
class EndRule:
    """The rules by which the log stores the messages of a type."""

    request: Callable[[Any], str]  # id of the request
    subject: Callable[[Any], str]  # a message with the subject of a stored one is a repetition
    # a request can lead to several messages of this type with different content; each is stored
    repeats: bool = False
    has_record: bool = False  # the message has a decision, which is stored without its record
    is_end: Callable[[Any], bool] = lambda message: True  # False: the message is not stored
