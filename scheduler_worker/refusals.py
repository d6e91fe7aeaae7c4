"""Counts why requests got no host and why placement refused claims, and stores the reasons for queries."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import Counter

from bus.claims import Claimed, ClaimResult, Refusal, Refused, RuleRefused
from bus.clock import Clock
from bus.messages import BuildRequested, BuildUnplaceable
from bus.moves import MoveRefused, MoveRequested
from bus.sql.database import Database
from features.topology.messages import topology_of
from scheduler_worker.agents import UNPLACEABLE
from scheduler_worker.store import decisions

# refused moves, each with the request for its destination, if one was made
RefusedMoves = Sequence[tuple[MoveRequested, BuildRequested | None, MoveRefused]]

TOPOLOGY_CODE = "topology"  # of decisions about requests that no domain could take
MOST_LEVELS = 32  # levels counted separately: requests may name any level

CLAIMED = Counter("berth_scheduler_claims", "claims of instances, by placement's answer", ["result"])
TURNED_DOWN = Counter("berth_scheduler_choices_refused", "hosts refused by placement, by reason", ["why"])
TOPOLOGY = Counter(
    "berth_scheduler_topology_refusals",
    "requests without a host because of a topology, by level; group: of a server group",
    ["level"],
)

_levels: set[str] = set()


def count_claims(results: Sequence[ClaimResult]) -> None:
    refusals = [
        refusal
        for result in results
        if isinstance(result, Claimed | Refused)
        for refusal in (result.refused if isinstance(result, Claimed) else result.refusals)
    ]
    for meter, counted in ((CLAIMED, Tally(map(_name, results))), (TURNED_DOWN, Tally(map(_name, refusals)))):
        for name, count in counted.items():
            meter.labels(name).inc(count)


def _name(result: ClaimResult | Refusal) -> str:
    return result.code if isinstance(result, RuleRefused) else type(result).__name__.lower()


def count_unplaceable(ended: Iterable[tuple[BuildRequested, BuildUnplaceable]]) -> None:
    """Count the requests that no domain could take, for each required level."""
    for request, message in ended:
        if message.decision.code == TOPOLOGY_CODE:
            topology = topology_of(request.parts)
            levels = {level for level in (topology.required_pack, topology.required_spread) if level}
            for level in levels or {"group"}:
                _count_level(level)


def _count_level(level: str) -> None:
    if level not in _levels and len(_levels) >= MOST_LEVELS:
        level = "other"
    else:
        _levels.add(level)
    TOPOLOGY.labels(level).inc()


class RefusalRecords:
    """Stores why builds and moves got no host, for later queries, and counts these builds in metrics."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add_builds(self, ended: Sequence[tuple[BuildRequested, Sequence[object]]]) -> None:
        """Store why builds got no host, from the messages that report an unplaceable build."""
        listed = [(request, message) for request, messages in ended for message in messages]
        ending = [(asked, message) for asked, message in listed if isinstance(message, BuildUnplaceable)]
        if ending:
            UNPLACEABLE.inc(len(ending))
            count_unplaceable(ending)
            async with self._database.write() as tx:
                await decisions.add(tx, ending, self._clock.now())

    async def add_moves(self, ending: RefusedMoves) -> None:
        """Store why moves were refused."""
        if ending:
            async with self._database.write() as tx:
                await decisions.add_moves(tx, ending, self._clock.now())
