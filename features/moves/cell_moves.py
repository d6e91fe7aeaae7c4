"""The moves of one cell: handles messages about them, and stores them with their builds; their metrics."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from prometheus_client import Counter

from bus.claims import ClaimRequested
from bus.errors import Poison, Retry, Unavailable
from bus.sql.statement import BoundStatement, Transaction, deletes_oldest, sql
from bus.vocabulary import Contended
from bus.worker import Outcome
from cell_conductor.extension import Applied, Build, CellBuilds, CourseStore, Event
from features.moves.core.beginning import undone_unknown
from features.moves.core.phases import (
    BuildMove,
    MoveEndedBefore,
    MoveImpossible,
    decode_move,
    decode_placed,
    encode_move,
    last_move,
    move_state,
    refused_move,
)
from features.moves.messages import FindMoves, MoveEnded, MovePlaced, MovesFound

# Conditions of partial indexes: an index is used only if the query repeats its condition literally.
UNDER_WAY = "status = 'open'"
ENDED = "status = 'ended'"

_SAVE = sql("""
    INSERT INTO moves (id, build, kind, status, phase, source, host, since, ended, placed, story)
    SELECT n.id, n.build, n.kind, n.status, n.phase, n.source, n.host, n.since, n.ended, n.placed, n.story
    FROM {n: id str, build str, kind str, status str, phase str, source str, host str,
    since float, ended float, placed str, story str} WHERE true
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, phase = excluded.phase, host = excluded.host,
    ended = excluded.ended, story = excluded.story RETURNING id
""")
_ENDED = sql(
    f"SELECT moves.id, moves.story FROM {{n: id str}} JOIN moves ON moves.id = n.id WHERE moves.{ENDED}"
)
_PRUNE = deletes_oldest("moves", "id", where=ENDED, time="ended")


async def prune(tx: Transaction, before: float, most: int) -> int:
    """Delete up to `most` records of moves that ended before this time; return their number."""
    return len(await _PRUNE(tx, before=before, most=most))


def saving(moves: Iterable[tuple[BuildMove, MovePlaced]]) -> BoundStatement:
    """Return the statement that stores the moves of builds, each with the scheduler's order."""
    return _SAVE.of(
        [
            (
                move.id,
                move.placed.build,
                move.kind,
                "open" if move.is_open else "ended",
                move.shown,
                move.left,
                move.host,
                move.since,
                move.ended,
                encode_move(placed).decode(),
                encode_move(move).decode(),
            )
            for move, placed in sorted(moves, key=lambda stored: stored[0].id)
        ]
    )


async def ended_moves(tx: Transaction, ids: Collection[str]) -> dict[str, BuildMove]:
    """Return the ended moves with these ids."""
    if not ids:
        return {}
    return {row["id"]: decode_move(row["story"]) for row in await _ENDED(tx, [(id_,) for id_ in ids])}


async def page_of_moves(tx: Transaction, asked: FindMoves) -> MovesFound:
    """Return a page of the moves that match all given conditions."""
    conditions = ["true"]
    given: dict[str, Any] = {}
    if asked.under_way:
        conditions.append(UNDER_WAY)
    if asked.host:
        conditions.append("(source = :host OR host = :host)")
        given["host"] = asked.host
    for column, named in (("id", asked.moves), ("build", asked.builds)):
        if named:
            listed = ", ".join(f"'{id_}'" for id_ in named)  # UUIDs, as checked by decoding
            conditions.append(f"{column} IN ({listed})")
    if asked.after:
        conditions.append("(since < :since OR (since = :since AND id > :id))")
        since, _, given["id"] = asked.after.partition(" ")
        try:
            given["since"] = float(since)
        except ValueError:
            raise Poison(f"after: {asked.after!r} is not where a page of moves ended") from None
    found = await sql(f"""
        SELECT id, since, placed, story FROM moves WHERE {" AND ".join(conditions)}
        ORDER BY since DESC, id LIMIT :most
    """)(tx, **given, most=asked.limit + 1)
    rows = found[: asked.limit]
    return MovesFound(
        moves=tuple(
            replace(move_state(decode_move(row["story"])), decision=decode_placed(row["placed"]).decision)
            for row in rows
        ),
        more=len(found) > len(rows),
        last=f"{rows[-1]['since']!r} {rows[-1]['id']}" if rows else "",
    )


MOVES_ENDED = Counter(
    "berth_moves_ended",
    "ends of moves that a cell published, repetitions included, by the plan that requested them",
    ["cell", "kind", "end", "plan"],
)


class MoveStore(CourseStore):
    """Stores each move, also after the end of its build's next move, so that a repeated order is answered."""

    async def read(
        self, tx: Transaction, events: Mapping[str, Event], known: Mapping[str, Build]
    ) -> Mapping[str, Event]:
        last = {move.id for build in known.values() if (move := last_move(build)) is not None}
        orders = {id_: order for id_, event in events.items() if (order := _order(event)) is not None}
        found = await ended_moves(tx, {order.move for order in orders.values()} - last)
        return {
            id_: MoveEndedBefore(found[order.move], order)
            for id_, order in orders.items()
            if order.move in found
        }

    def rows(self, applied: Sequence[Applied], now: float) -> Sequence[BoundStatement]:
        moves = [move for each in applied if (move := _changed_move(each, now)) is not None]
        return (saving(moves),) if moves else ()

    def count(self, applied: Applied) -> None:
        for message in applied.effects:
            if isinstance(message, MoveEnded):
                MOVES_ENDED.labels(message.cell, message.kind, message.end, message.plan or "none").inc()


def _order(event: Event) -> MovePlaced | None:
    if isinstance(event, MoveImpossible):
        return event.placed
    return event if isinstance(event, MovePlaced) else None


def _changed_move(applied: Applied, now: float) -> tuple[BuildMove, MovePlaced] | None:
    """Return the move to store after an event that began, changed or refused a move, with the scheduler's
    order of this move; None if the event did not affect a move.
    """
    order, move = _order(applied.event), last_move(applied.after)
    if move is not None and last_move(applied.before) is not move:
        return move, order if order is not None and order.move == move.id else move.placed
    if order is None or applied.after is None or (move is not None and move.id == order.move):
        return None
    ends = (each for each in applied.effects if isinstance(each, MoveEnded) and each.move == order.move)
    end = next(ends, None)
    return (refused_move(order, end.end, end.reason, now), order) if end is not None else None


METAL = "an instance on bare metal does not move: its node is all of it"


class CellMoves:
    """Handles the moves of one cell."""

    def __init__(self, builds: CellBuilds) -> None:
        self.builds = builds
        self.database = builds.database

    async def place_many(self, placed: Sequence[MovePlaced]) -> Sequence[Outcome]:
        """Begin the moves that the scheduler placed. Return the messages for each; for a move that has ended
        already, its last messages again.
        """
        known = await self.builds.load({move.build for move in placed})
        ever = {build.id for build in known.values() if build.placed is not None}
        strange = [move for move in placed if not move.out_of and move.build not in ever]
        async with self.database.read() as tx:  # moves of builds that were pruned since
            ended = await ended_moves(tx, {move.move for move in strange})
        metal = await self.builds.on_shared_nodes(known.values())
        undone = [move for move in strange if move.move not in ended]
        later = {move.move: retry for move in undone if (retry := await self._undo(move)) is not None}
        events: list[tuple[str, Event]] = [
            (move.build, MoveImpossible(move, METAL) if move.build in metal else move)
            for move in placed
            if move.move not in later
        ]
        outcomes = iter(await self.builds.apply(events))
        return [later.get(move.move) or next(outcomes) for move in placed]

    async def find(self, question: FindMoves) -> MovesFound:
        async with self.database.read() as tx:
            return await page_of_moves(tx, question)

    async def _undo(self, placed: MovePlaced) -> Retry | None:
        question = undone_unknown(placed)
        result: object = None
        try:
            if isinstance(question, ClaimRequested):
                result = (await self.builds.placement.claim_many([question]))[0].results[0]
            elif question is not None:
                result = (await self.builds.placement.release_many([question]))[0].result
        except Unavailable as away:
            return Retry(1.0, f"placement is away: {away}")
        return Retry(0.5, "placement is contended") if isinstance(result, Contended) else None
