"""Recorded decisions, and the same decisions repeated with a changed policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from bus.decisions import Record
from bus.messages import BuildRequested

Source = Literal["record", "present hosts", "hosts of then"]
Verdict = Literal["same", "elsewhere", "nowhere", "placed", "none"]


@dataclass(frozen=True)
class RecordedDecision:
    """A recorded decision: the request, when it was decided, the chosen host, and the decision record."""

    build: str
    at: float
    request: BuildRequested
    host: str = ""  # empty: it got no host
    root: str = ""
    record: Record | None = None
    amounts: Mapping[str, int] = field(default_factory=dict)  # of the build or refused request
    instances: int = 1
    exists: bool = False  # the instance still has its allocations
    replaces: bool = False  # it took the place of other instances


class RepeatedDecision(msgspec.Struct, frozen=True):
    """A recorded decision, and its host without (`before`) and with (`after`) the changed policy."""

    build: str
    project: str
    flavor: str
    at: float
    recorded: str  # the host that it got; empty: no host
    before: str
    after: str
    verdict: Verdict
    by: Source
    why: str = ""  # why it gets no host
    replaces: int = 0  # instances that it would replace with the change
