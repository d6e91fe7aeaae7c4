"""Reads the instances to move: their hosts from placement, and their specs from the hosts' cells. If
an instance changes before the claim, placement refuses the claim.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from bus.aggregates import ZONE
from bus.candidates import CandidateSource
from bus.errors import AnswerRefused, NoAnswer, Unroutable
from bus.parts import RequestParts
from bus.protocol import Ask
from bus.queries import BuildsFound, BuildStands, FindBuilds
from bus.resources import Provider
from bus.vocabulary import Id, portions
from features.moves.core.start import (
    Barred,
    LookedUpMove,
    MoveStart,
    NotYet,
    PartsOfMoves,
    SeenThrough,
    Stopped,
    misread,
    move_start,
    stuck,
    unready,
)
from features.moves.messages import FindMoves, MoveRequested, MovesFound, MoveStands
from scheduler_worker.extension import CellQueries, Ending, PlacementQueries, place_of, providers_of, together

BUILDS_ASKED = 100  # build ids in one query to a cell
MOVES_ASKED = 100  # move ids in one query to a cell; the answer contains their phases
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(slots=True)
class _Standing:
    """The answers of placement and the cells about instances to move: their cells, hosts and states."""

    cells: dict[Id, list[str]] = field(default_factory=dict)  # build → cells that may have a record of it
    held: set[Id] = field(default_factory=set)  # builds with allocations
    nobodys: set[Id] = field(default_factory=set)  # builds on hosts without an agent
    stands: dict[Id, tuple[str, BuildStands]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)  # cells that did not answer → the error text


@dataclass(frozen=True)
class MoveLookups:
    """Reads the state of instances that move: build, allocations, host."""

    source: CandidateSource
    ending: Ending
    placement: PlacementQueries
    cells: CellQueries
    find_moves: Ask[FindMoves, MovesFound]
    options: Any = None  # of the scheduler's requests, with which features check them
    parts_of: list[PartsOfMoves] = field(default_factory=list)  # of joins of other features

    async def look_up(self, requests: Sequence[MoveRequested]) -> list[LookedUpMove]:
        """Return for each request the instance as it stands, or why it cannot move."""
        wrong = [misread(request, self.options) for request in requests]
        pairs = list(zip(requests, wrong, strict=True))
        standing = await self._standing([request for request, barred in pairs if not barred])
        results: list[LookedUpMove] = [
            _judged(request, standing) if barred is None else Stopped(barred) for request, barred in pairs
        ]
        starts = [result for result in results if isinstance(result, MoveStart)]
        roots = await self._roots(starts)
        parts = [await parts_of(starts) for parts_of in self.parts_of]
        for index, start in enumerate(results):
            if isinstance(start, MoveStart):
                root = roots.get(start.source.root) if start.source else None
                added = RequestParts(*[found.get(start.asked.build) for found in parts])
                start = structs.replace(start, parts=added)
                if root is not None and start.asked.kind == "evacuate":
                    start = start.leaving_zones(self._zones(root))
                barred = stuck(start, root)
                results[index] = start if barred is None else Stopped(barred, start)
        return results

    async def builds_of(self, cell: str, moves: Sequence[Id]) -> dict[Id, Id]:
        """Return the builds of those of the given moves that a cell has recorded."""
        found = await self.find_moves(FindMoves(cell=cell, moves=tuple(moves), limit=len(moves)))
        return {stands.move: stands.build for stands in found.moves}

    async def recorded(self, moves: Sequence[Id]) -> Mapping[Id, MoveStands]:
        """Return those of the given moves that a cell which answers has recorded, by id."""
        if not moves:
            return {}
        pages = [(cell, some) for cell in self._cells() for some in portions(moves, MOVES_ASKED)]
        answers = await together([self._recorded(*page) for page in pages])
        found = [stands for answer in answers for stands in answer]
        # Of a move between cells, only the record of the destination cell has the digest of the request.
        return {stands.move: stands for stands in sorted(found, key=lambda stands: bool(stands.content))}

    async def _recorded(self, cell: str, moves: tuple[Id, ...]) -> Sequence[MoveStands]:
        try:
            return (await self.find_moves(FindMoves(cell=cell, moves=moves, limit=MOVES_ASKED))).moves
        except (Unroutable, NoAnswer, AnswerRefused):
            return ()

    async def _standing(self, requests: Sequence[MoveRequested]) -> _Standing:
        standing = _Standing()
        if not requests:
            return standing
        held = await self.ending.held(request.build for request in requests)
        providers = await self.ending.look_up(list(held.values()))
        everywhere: list[str] | None = None
        for request in requests:
            build = request.build
            if build in held:
                standing.held.add(build)
                place = place_of(held[build], providers)
                if place is None:
                    standing.nobodys.add(build)
                standing.cells[build] = [] if place is None else [place.cell]
                # After the begin of a move to this cell, the record may still be in any cell.
                if place is not None and place.cell == request.to_cell:
                    everywhere = self._cells() if everywhere is None else everywhere
                    standing.cells[build] = sorted({*everywhere, place.cell})
            elif request.cell:
                standing.cells[build] = [request.cell] if _WORD.fullmatch(request.cell) else []
            else:
                everywhere = self._cells() if everywhere is None else everywhere
                standing.cells[build] = everywhere
        await self._ask_cells(standing)
        return standing

    def _cells(self) -> list[str]:
        known = {host.cell for host in self.source.hosts()} | set(self.source.cells)
        return sorted(known - {""})

    async def _ask_cells(self, standing: _Standing) -> None:
        asked: defaultdict[str, list[Id]] = defaultdict(list)
        for build, cells in standing.cells.items():
            for cell in cells:
                asked[cell].append(build)
        questions = [(cell, some) for cell, ids in asked.items() for some in portions(ids, BUILDS_ASKED)]
        answers = await together([self._ask_cell(*question) for question in questions])
        for (cell, _), answer in zip(questions, answers, strict=True):
            if isinstance(answer, str):
                standing.silent[cell] = answer
                continue
            for stands in answer.builds:
                standing.stands[stands.build] = cell, stands

    async def _ask_cell(self, cell: str, builds: tuple[Id, ...]) -> BuildsFound | str:
        try:
            return await self.cells.builds(FindBuilds(cell=cell, builds=builds))
        except Unroutable:
            return f"cell {cell!r}: no conductor answers there"
        except (NoAnswer, AnswerRefused) as problem:
            return f"cell {cell!r}: its conductor does not answer: {problem}"

    async def _roots(self, starts: Sequence[MoveStart]) -> Mapping[str, Provider]:
        ids = dict.fromkeys(start.source.root for start in starts if start.source is not None)
        return await providers_of(self.placement, ids, ("inventories", "traits", "aggregates", "owner"))

    def _zones(self, root: Provider) -> set[str]:
        """Return the zones of a host: of its report, and of its aggregates."""
        aggregates = self.source.aggregates
        metadata = [aggregates[uuid].metadata for uuid in root.aggregates if uuid in aggregates]
        return {root.zone, *(each[ZONE] for each in metadata if ZONE in each)}


def _judged(asked: MoveRequested, standing: _Standing) -> LookedUpMove:
    build = asked.build
    if build not in standing.stands:
        return _unknown(build, standing)
    cell, stands = standing.stands[build]
    if stands.move == asked.move:
        return SeenThrough()
    start = move_start(asked, stands, cell)
    barred = unready(asked, stands)
    if barred is None and not start.is_complete:
        barred = Barred(code="no_conductor", why=f"cell {cell!r}: its conductor does not support moves yet")
    if barred is not None:
        return Stopped(barred, start)
    return start


def _unknown(build: Id, standing: _Standing) -> LookedUpMove:
    cells = standing.cells[build]
    silent = [standing.silent[cell] for cell in cells if cell in standing.silent]
    if silent:
        return NotYet(Barred(code="no_conductor", why="; ".join(silent[:3])))
    if build in standing.nobodys:
        why = "it holds resources where no agent builds: no build of ours"
        return Stopped(Barred(code="unknown", why=why))
    if build in standing.held:  # the message that the build was placed may not have reached the cell yet
        return NotYet(Barred(code="unknown", why=f"cell {cells[0]!r} does not know of this build"))
    where = f"cell {cells[0]!r} does not know" if len(cells) == 1 else "no cell knows"
    return Stopped(Barred(code="unknown", why=f"{where} of such a build, and it holds nothing"))
