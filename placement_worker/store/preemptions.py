"""SQL for the records of preemptions: insert them with their claim, count and find them, delete old ones."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from bus.preemption import BUDGET_SECONDS, FindPreemptions, Preemption
from bus.sql.statement import sql
from bus.sql.transaction import Transaction

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
PRUNE = sql("DELETE FROM preemptions WHERE at < :before")

_decode = msgspec.json.Decoder(Preemption).decode
_encode = msgspec.json.Encoder().encode


def rows(preemptions: Iterable[Preemption]) -> list[tuple[Any, ...]]:
    return [
        (each.victim.build, each.by, each.project, each.at, _encode(each).decode()) for each in preemptions
    ]


async def used(tx: Transaction, projects: Collection[str], now: float) -> dict[str, int]:
    """Return how many instances each project has preempted within the period of its budget."""
    found = await _USED(tx, [(project,) for project in projects], since=now - BUDGET_SECONDS)
    return {project: int(several) for project, several in found}


async def find(tx: Transaction, query: FindPreemptions) -> list[Preemption]:
    found = []
    for statement, ids in ((_BY, query.by), (_OF, query.victims)):
        if ids:
            found += [_decode(row["record"]) for row in await statement(tx, [(id_,) for id_ in ids])]
    return found
