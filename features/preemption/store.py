"""SQL for the records of preemptions: insert them with their claim, count and find them, delete old ones."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from bus.sql.statement import Transaction, sql
from features.preemption.messages import BUDGET_SECONDS, FindPreemptions, Preemption

INSERT = sql("""
    INSERT INTO preemptions (victim, preemptor, project, at, record)
    SELECT n.victim, n.preemptor, n.project, n.at, n.record
    FROM {n: victim str, preemptor str, project str, at float, record str}
    WHERE true ON CONFLICT (victim, preemptor) DO NOTHING
""")
_USED = sql("""
    SELECT p.project, count(DISTINCT p.victim)
    FROM {n: project str} JOIN preemptions p ON p.project = n.project
    WHERE p.at > :since GROUP BY p.project
""")
_BY = sql("SELECT p.record FROM {n: id str} JOIN preemptions p ON p.preemptor = n.id ORDER BY p.at, p.victim")
_OF = sql("SELECT p.record FROM {n: id str} JOIN preemptions p ON p.victim = n.id ORDER BY p.at, p.victim")
_LATEST = sql("SELECT record FROM preemptions ORDER BY at DESC, victim LIMIT :most")
_MOST = sql("""
    SELECT project, count(DISTINCT victim) AS several FROM preemptions WHERE at > :since
    GROUP BY project ORDER BY several DESC, project LIMIT :most
""")
PRUNE = sql("DELETE FROM preemptions WHERE at < :before")

_decode = msgspec.json.Decoder(Preemption).decode
_encode = msgspec.json.Encoder().encode


def rows(preemptions: Iterable[Preemption]) -> list[tuple[Any, ...]]:
    """Return preemptions as rows of the table."""
    return [
        (each.victim.build, each.by, each.project, each.at, _encode(each).decode()) for each in preemptions
    ]


async def used(tx: Transaction, projects: Collection[str], now: float) -> dict[str, int]:
    """Return how many instances each project has preempted within the period of its budget. A project without
    preemptions is left out.
    """
    found = await _USED(tx, [(project,) for project in projects], since=now - BUDGET_SECONDS)
    return {project: int(several) for project, several in found}


async def find(tx: Transaction, query: FindPreemptions) -> list[Preemption]:
    """Return the recorded preemptions by or of these builds."""
    found = []
    for statement, ids in ((_BY, query.by), (_OF, query.victims)):
        if ids:
            found += [_decode(row["record"]) for row in await statement(tx, [(id_,) for id_ in ids])]
    if query.latest:
        found += [_decode(row["record"]) for row in await _LATEST(tx, most=query.latest)]
    return found


async def used_most(tx: Transaction, now: float, most: int) -> dict[str, int]:
    """Return the projects that have preempted the most instances within the period of their budget, each with
    its number of victims.
    """
    found = await _MOST(tx, since=now - BUDGET_SECONDS, most=most)
    return {project: int(several) for project, several in found}
