"""What would fit now? Searches the index, and says which constraint emptied the set and what came closest."""

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from bus.messages import CandidatesFound, FindCandidates
from bus.protocol import Poison
from bus.vocabulary import Candidate, NearMiss, Removal, ResourceGroup
from placement_worker.core.capacity import broken_limit
from placement_worker.core.index import Bools, Index, Row

FIRST_BLOCK, LARGEST_BLOCK = 512, 16_384  # rows looked through at a time for the next candidates
PAGE_BYTES = 700_000  # an answer must fit a message; there is another page
NEAREST = 5


@dataclass(slots=True)
class _Constraint:
    """One demand, which hosts meet it (None: nobody does), and of a resource class how much of it."""

    says: str
    met: Bools | None
    resource_class: str = ""
    asked: int = 0


def search(index: Index, query: FindCandidates) -> CandidatesFound:
    """One page of the hosts that fit, beginning where the seed says; each is on one page only."""
    group = _only_group(query)
    high = index.high
    fitting = index.roots[:high]
    considered = count = int(np.count_nonzero(fitting))
    removals = []
    constraints = list(_constraints(index, query.cell, group))
    for constraint in constraints:
        before = count
        if constraint.met is None:
            count = 0
        elif count:
            fitting = fitting & constraint.met
            count = int(np.count_nonzero(fitting))
        if count < before:
            removals.append(Removal(constraint=constraint.says, removed=before - count, left=count))
    if not count:
        return CandidatesFound(
            seen=index.seen,
            candidates=(),
            fitting=0,
            considered=considered,
            removals=tuple(removals),
            nearest=_nearest(index, constraints),
        )
    candidates, more = _page(index, query, group, fitting)
    return CandidatesFound(
        seen=index.seen,
        candidates=candidates,
        fitting=count,
        considered=considered,
        more=more,
        removals=tuple(removals),
    )


def _only_group(query: FindCandidates) -> ResourceGroup:
    for position, group in enumerate(query.groups):
        if group.suffix:
            raise Poison(f"groups[{position}].suffix: numbered groups cannot be asked for yet")
        if position:
            raise Poison(f"groups[{position}].suffix: there is one group without a suffix already")
    if not query.groups[0].resources:
        raise Poison("groups[0].resources: empty")
    return query.groups[0]


def _constraints(index: Index, cell: str, group: ResourceGroup) -> Iterator[_Constraint]:
    """Every demand, what is cheap and telling first; which rows meet it is worked out as it is asked for."""
    high = index.high
    if cell:
        flags = index.cells.get(cell)
        yield _Constraint(f"cell {cell}", None if flags is None else flags[:high])
    for trait in group.required:
        flags = index.traits.get(trait)
        if flags is None:
            yield _Constraint(f"trait {trait}: nobody has it", None)
        else:
            yield _Constraint(f"trait {trait}", flags[:high])
    for trait in group.forbidden:
        flags = index.traits.get(trait)
        if flags is not None:
            yield _Constraint(f"no trait {trait}", ~flags[:high])
    for choice in group.member_of:
        known = [index.aggregates[uuid][:high] for uuid in choice if uuid in index.aggregates]
        says = "aggregate " + " or ".join(choice)
        yield _Constraint(says, np.logical_or.reduce(known) if known else None)
    for name, asked in group.resources.items():
        kind = index.classes.get(name)
        if kind is None:
            yield _Constraint(f"resource class {name}: nobody has it", None, name, asked)
            continue
        met = kind.top[:high] >= asked
        if kind.picky:
            met &= kind.least[:high] <= asked
            met &= asked % kind.step[:high] == 0
        yield _Constraint(f"{name}: {asked} free", met, name, asked)


def _page(
    index: Index, query: FindCandidates, group: ResourceGroup, fitting: Bools
) -> tuple[tuple[Candidate, ...], int | None]:
    """`after` and `more` count rows from the starting position on, round the end of the arrays."""
    high, size = index.high, len(index.at)
    start = _start(query.seed, high, size)
    resources = group.resources
    room, asked = PAGE_BYTES, sum(len(name) + 14 for name in resources)
    found: list[Candidate] = []
    for position in _walk(fitting, start, query.after, size):
        row = index.at[position]
        assert row is not None
        room -= row.size + asked
        if len(found) == query.limit or (room < 0 and found):
            return tuple(found), (position - start) % size
        found.append(
            Candidate(
                row.uuid,
                row.host,
                row.cell,
                row.agent,
                row.zone,
                {row.uuid: resources},
                row.shapes,
                row.free,
                row.capacity,
                row.traits,
            )
        )
    return tuple(found), None


def _start(seed: str, high: int, size: int) -> int:
    """Where a search with this seed begins: the same row while few hosts come or go, so pages join up."""
    grain = size // 16
    span = high - high % grain if high > grain else high
    return (crc32(seed.encode()) * span) >> 32 if seed else 0


def _walk(fitting: Bools, start: int, after: int, size: int) -> Iterator[int]:
    """The positions that fit, from `after` rows beyond the start on, once round."""
    block = FIRST_BLOCK
    for low, end in ((start + after, size), (max(start + after - size, 0), start)):
        end = min(end, len(fitting))
        while low < end:
            yield from (np.flatnonzero(fitting[low : min(low + block, end)]) + low).tolist()
            low, block = low + block, min(block * 2, LARGEST_BLOCK)


def _nearest(index: Index, constraints: list[_Constraint]) -> tuple[NearMiss, ...]:
    """The hosts that fail the fewest demands, and of those the ones that are least short."""
    high = index.high
    failed = np.where(index.roots[:high], 0.0, np.inf)
    short = np.zeros(high)
    for constraint in constraints:
        failed += 1 if constraint.met is None else ~constraint.met
        kind = index.classes.get(constraint.resource_class)
        if kind is not None:
            short += np.maximum(constraint.asked - kind.top[:high], 0) / constraint.asked
    distance = failed + short / (1 + short)
    ranked = np.sort(np.argpartition(distance, NEAREST)[:NEAREST]) if high > NEAREST else np.arange(high)
    ranked = ranked[np.argsort(distance[ranked], kind="stable")]
    misses = []
    for position in ranked:
        row = index.at[position]
        if row is not None and row.parent is None:
            lacks = [_lack(row, one) for one in constraints if one.met is None or not one.met[position]]
            misses.append(NearMiss(host=row.host, lacks="; ".join(lacks)))
    return tuple(misses)


def _lack(row: Row, constraint: _Constraint) -> str:
    name, asked = constraint.resource_class, constraint.asked
    if not name:
        return constraint.says
    if name not in row.inventories:
        return f"{asked} {name}: it has none"
    inventory = row.inventories[name]
    free = row.free[name]
    if asked > free:
        return f"{asked - max(free, 0)} {name}: asked {asked}, free {max(free, 0)}"
    limit = broken_limit(asked, inventory.min_unit, inventory.max_unit, inventory.step_size)
    return f"a fitting {limit}: asked {asked} {name}, {limit} {getattr(inventory, limit)}"
