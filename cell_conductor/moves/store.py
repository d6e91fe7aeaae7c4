"""SQL for the moves of builds."""

from collections.abc import Collection, Iterable
from typing import Any

from msgspec.structs import replace

from bus.errors import Poison
from bus.moves import FindMoves, MovePlaced, MovesFound
from bus.sql.statement import sql
from bus.sql.transaction import Transaction
from cell_conductor.moves.core.move import BuildMove, decode_move, decode_placed, encode_move, move_state

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
_PRUNE = sql(f"""
    DELETE FROM moves WHERE id IN (SELECT id FROM moves
    WHERE {ENDED} AND ended < :before ORDER BY ended LIMIT :most) RETURNING id
""")


async def prune(tx: Transaction, before: float, most: int) -> int:
    return len(await _PRUNE(tx, before=before, most=most))


async def save(tx: Transaction, moves: Iterable[tuple[BuildMove, MovePlaced]]) -> None:
    """Store the moves of builds, each with the scheduler's message that ordered it."""
    values = [
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
    if values:
        await _SAVE(tx, values)


async def ended(tx: Transaction, ids: Collection[str]) -> dict[str, BuildMove]:
    if not ids:
        return {}
    return {row["id"]: decode_move(row["story"]) for row in await _ENDED(tx, [(id_,) for id_ in ids])}


async def page(tx: Transaction, asked: FindMoves) -> MovesFound:
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
