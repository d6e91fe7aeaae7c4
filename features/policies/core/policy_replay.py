"""Makes a recorded decision again with other multipliers, from the values that were recorded at its time."""

from collections.abc import Mapping

from msgspec import structs

from bus.decisions import Record
from scheduler_worker.extension import Replayed, replay


def reweighed(
    build: str, record: Record, multipliers: Mapping[str, float], subset: int | None, near: float | None
) -> Replayed | None:
    """Return the choice among the recorded hosts with other multipliers, another `subset` (best hosts from
    which one is drawn) and `near` (difference up to which scores are equal); None: as recorded. Aggregates
    still override multipliers. Return None if values of a weigher in `multipliers` were not recorded.
    """
    known = {scale.weigher for scale in record.scales}
    if not known.issuperset(multipliers):
        return None
    scales = tuple(
        structs.replace(scale, multiplier=multipliers.get(scale.weigher, scale.multiplier))
        for scale in record.scales
    )
    changed = structs.replace(
        record,
        scales=scales,
        subset=record.subset if subset is None else subset,
        near=record.near if near is None else near,
    )
    return replay(build, changed)
