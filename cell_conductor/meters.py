"""Prometheus metrics of a conductor: ends of builds and moves."""

from collections.abc import Iterable

from prometheus_client import Counter

from bus.messages import BuildEnded
from bus.moves import MoveEnded
from bus.vocabulary import Message

BUILDS_ENDED = Counter(
    "berth_builds_ended", "ends of builds that a cell published, repetitions included", ["cell", "status"]
)
MOVES_ENDED = Counter(
    "berth_moves_ended",
    "ends of moves that a cell published, repetitions included",
    ["cell", "kind", "end"],
)


def count_ends(said: Iterable[Message]) -> None:
    for message in said:
        if isinstance(message, BuildEnded):
            BUILDS_ENDED.labels(message.cell, message.status).inc()
        elif isinstance(message, MoveEnded):
            MOVES_ENDED.labels(message.cell, message.kind, message.end).inc()
