"""Explanations that features add to the output of commands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.decisions import Decision
from bus.vocabulary import Message, Value


@dataclass(frozen=True)
class BuildExplanation:
    """A line about a build, and the record that `--json` prints.

    `at`: when this happened; 0: unknown. `decision`: the decision to show below the line. `subject`: what the
    explained id is, such as "a move", if it is of this record, and of no build or request.
    """

    line: str
    record: Message | Value | None = None
    style: str = ""
    at: float = 0.0
    decision: Decision | None = None
    subject: str = ""


@dataclass(frozen=True)
class AnswerAddition:
    """The part of a command's output that a feature adds: lines of text, each with its style, and fields of
    the object that `--json` prints.
    """

    lines: Sequence[tuple[str, str]] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
