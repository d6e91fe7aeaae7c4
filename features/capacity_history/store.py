"""SQL for samples of the capacity over time: for each interval, the first sample of any scheduler is kept."""

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from bus.sql.statement import Transaction, sql
from features.capacity_history.messages import CapacityFound, CapacitySample, FindCapacity

# Each: seconds between samples, and seconds until they are replaced by means over the next longer interval.
SPANS = ((300, 2 * 86400), (3600, 60 * 86400), (86400, 3 * 366 * 86400))

_FIGURES = ("capacity", "used", "free", "stranded", "waiting")
_COLUMNS = ", ".join(("at", "kind", "name", "zone", *_FIGURES))
_INSERT = sql(f"""
    INSERT INTO capacity_samples (span, {_COLUMNS})
    SELECT CAST(:span AS integer), n.at, n.kind, n.called, n.zone, n.capacity, n.used, n.free, n.stranded,
    n.waiting
    FROM {{n: at int, kind str, called str, zone str, capacity float, used float, free float, stranded float,
    waiting float}} WHERE true ON CONFLICT (span, at, kind, name, zone) DO NOTHING
""")
_SELECTED = """
    FROM capacity_samples WHERE kind = :kind AND at >= :since AND at < :until
    AND (CAST(:called AS text) = '' OR name = CAST(:called AS text))
    AND (at > :after_at OR (at = :after_at AND name > CAST(:after_name AS text)))
"""
_FIND = sql(f"""
    SELECT {_COLUMNS} {_SELECTED} AND zone = CAST(:zone AS text) ORDER BY at, name LIMIT :most
""")
_SUMS = ", ".join(f"sum({name})" for name in _FIGURES)
_FIND_SUMS = sql(f"""
    SELECT at, kind, name, '' AS zone, {_SUMS} {_SELECTED} GROUP BY at, kind, name
    ORDER BY at, name LIMIT :most
""")
_HAS = sql("SELECT 1 FROM capacity_samples WHERE span = :span AND at = :at LIMIT 1")
_MEANS = ", ".join(f"avg({name})" for name in _FIGURES)
_MERGE = sql(f"""
    INSERT INTO capacity_samples (span, {_COLUMNS})
    SELECT CAST(:longer AS integer), (at / CAST(:longer AS bigint)) * CAST(:longer AS bigint), kind, name,
    zone, {_MEANS} FROM capacity_samples WHERE span = CAST(:span AS integer) AND at < CAST(:before AS bigint)
    GROUP BY 2, kind, name, zone ON CONFLICT (span, at, kind, name, zone) DO NOTHING
""")
_PRUNE = sql("DELETE FROM capacity_samples WHERE span = :span AND at < CAST(:before AS bigint)")


async def has_sample(tx: Transaction, at: int) -> bool:
    return bool(await _HAS(tx, span=SPANS[0][0], at=at))


async def add(tx: Transaction, samples: Sequence[CapacitySample]) -> None:
    rows = [(int(sample.at), *structs.astuple(sample)[1:]) for sample in samples]
    await _INSERT(tx, rows, span=SPANS[0][0])


async def find(tx: Transaction, query: FindCapacity) -> CapacityFound:
    after = query.after or (-1, "")
    params: dict[str, Any] = {
        "kind": query.kind, "since": int(query.since), "until": int(query.until), "called": query.name,
        "after_at": int(after[0]), "after_name": after[1], "most": query.limit,
    }  # fmt: skip
    if query.zone is None:
        rows = await _FIND_SUMS(tx, **params)
    else:
        rows = await _FIND(tx, zone=query.zone, **params)
    samples = tuple(CapacitySample(*row) for row in rows)
    last = (samples[-1].at, samples[-1].name) if len(rows) == query.limit else None
    return CapacityFound(samples=samples, last=last)


async def merge(tx: Transaction, now: float) -> None:
    """Replace old samples by means over longer intervals, and delete old means over the longest interval."""
    for at, (span, keep) in enumerate(SPANS):
        longer = SPANS[at + 1][0] if at + 1 < len(SPANS) else 0
        before = int(now - keep) // (longer or span) * (longer or span)  # only whole intervals are merged
        if longer:
            await _MERGE(tx, longer=longer, span=span, before=before)
        await _PRUNE(tx, span=span, before=before)
