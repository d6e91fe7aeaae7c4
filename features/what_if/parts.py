"""Additions of other features to `berth request what-if`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from berth.kit import AnswerAddition
from bus.delivery.runner import Bus
from features.what_if.messages import WhatIfAnswered

MODULE = "what_if_part"  # of a feature or join, with its `WhatIfPart`


@dataclass(frozen=True)
class WhatIfPart:
    """`options`: a dataclass of further options. Its method `answer(cli, options, question)` answers in place
    of a scheduler and returns the exit code, or None if none of its options is given.
    `additions`: returns what is added to the output for an answer of a scheduler.
    """

    options: type[Any] | None = None
    additions: Callable[[Bus, WhatIfAnswered], Awaitable[AnswerAddition]] | None = None
