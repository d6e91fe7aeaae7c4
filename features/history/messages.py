"""Past states of placement: snapshots, and the numbered changes after each of them; and their query."""

from typing import Annotated

from msgspec import Meta

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.feature import MessagesPart
from bus.replication import ConsumerChange, KnownTrees, ProviderChange
from bus.topics import ANYONE, Query
from bus.vocabulary import Cause, Compact, Count, LongList, Message, Ordinal, Seconds, Text, Value

LINE = 4000  # characters


class LoggedCommit(Compact, frozen=True):
    """A commit of placement with its time, and with everything that it changed."""

    number: Ordinal
    at: Seconds
    changes: LongList[ProviderChange] = ()
    trees: KnownTrees | None = None  # created, reshaped and deleted trees
    aggregates: LongList[Aggregate] = ()
    cells: LongList[RegisteredCell] = ()
    consumers: LongList[ConsumerChange] = ()
    renamed: tuple[Text, Text] | None = None  # a resource class: its former and its new name


class SnapshotPart(Value, frozen=True, kw_only=True):
    """A part of a snapshot of placement's state."""

    trees: KnownTrees | None = None
    aggregates: LongList[Aggregate] = ()
    cells: LongList[RegisteredCell] = ()
    consumers: LongList[ConsumerChange] = ()


class FindHistory(Message, frozen=True, kw_only=True):
    """A query for the state of placement at the time `at` or after the change `number`, and for the changes
    from then up to the time `until` (0: no changes).

    The answer is a sequence of pieces: the latest snapshot before the state, then changes. If the answer has
    `more` pieces, the query is repeated with the fields that the last answer returned.
    """

    number: Ordinal | None = None  # the last change of the state; None: the state at the time `at`
    at: Seconds = 0.0
    until: Seconds = 0.0  # 0: only the state; else also the changes up to this time
    # this and the following fields: as in the previous answer, to get the next pieces
    snapshot: Ordinal | None = None
    parts: Count = 0
    after: Ordinal = 0
    skip: Count = 0


class HistoryPiece(Value, frozen=True, kw_only=True):
    """A part of a snapshot, or archived changes: JSON, compressed by zlib, as lines of base64."""

    body: LongList[Annotated[str, Meta(max_length=LINE)]]
    is_snapshot: bool = False
    is_cut: bool = False  # the next piece continues this one


class HistoryFound(Message, frozen=True, kw_only=True):
    """Pieces of the history of placement, oldest first."""

    pieces: LongList[HistoryPiece] = ()
    more: bool = False
    snapshot: Ordinal = 0  # the number of the snapshot
    snapshot_at: Seconds = 0.0
    parts: Count = 0  # parts of the snapshot received so far
    after: Ordinal = 0  # number of the last completely received change
    skip: Count = 0  # bytes that were received of the next piece
    refused: Cause = ""  # why the query was refused


HISTORY = Query(
    "placement.history",
    FindHistory,
    HistoryFound,
    "the state of placement at a time or after a change, and the changes from then on",
    ANYONE,
    "placement",
)

PART = MessagesPart()
