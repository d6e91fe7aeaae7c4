"""Explanations that features add to the output of `berth why`."""

from dataclasses import dataclass

from bus.vocabulary import Message, Value


@dataclass(frozen=True)
class Explanation:
    """A line about a build, and the record that `--json` prints. `at`: when this happened; 0: unknown."""

    line: str
    record: Message | Value | None = None
    style: str = ""
    at: float = 0.0
