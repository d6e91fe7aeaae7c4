"""The promises, checked from the databases: nothing over-allocated, doubled, or without an owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from berth import wiring
from berth.settings import Settings
from bus.clock import Clock
from bus.errors import Unavailable
from cell_conductor import census
from placement_worker import breaches, holdings, retired

_UNDER_WAY = 30.0  # a claim younger than this may belong to a build its cell has not stored yet


@dataclass
class Audit:
    """What was counted and what was found wrong."""

    breaches: list[str] = field(default_factory=list)
    consumers: int = 0
    builds: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return not self.breaches


async def audit(settings: Settings, *, settled: bool = False, clock: Clock | None = None) -> Audit:
    """`settled` says that no boot is under way, so that everything must add up now."""
    clock = clock or Clock()
    await refuse_the_unmade(settings)
    found = Audit()
    placement = wiring.database(settings, wiring.Role("placement"))
    try:
        # The cells are read first: a build seen alive there must be held in what placement says afterwards,
        # unless it has ended meanwhile, which the second reading tells.
        before = await _builds(settings)
        found.breaches += await breaches(placement)
        held = await holdings(placement)
        gone = await retired(placement)
        after = await _builds(settings)
    finally:
        await placement.close()
    found.consumers = len(held)
    for status in after.statuses():
        found.builds[status] = found.builds.get(status, 0) + 1
    found.breaches += after.doubled
    found.breaches += _unheld(before, after, held)
    found.breaches += _unowned(after, held, clock.now() - (0 if settled else _UNDER_WAY))
    found.breaches += [
        f"{consumer}: retired, and yet holds resources" for consumer in held if consumer in gone
    ]
    if settled:
        found.breaches += [
            f"{id_}: still {known.status} in cell {known.cell}"
            for id_, known in after.builds.items()
            if known.status not in ("active", "error", "deleted")
        ]
    return found


async def refuse_the_unmade(settings: Settings) -> None:
    """Nothing can be said of what was never there: an empty audit would look like a clean one."""
    where = settings.database.state_dir if settings.embedded else "the database"
    if not await wiring.ever_made(settings, wiring.Role("placement")):
        raise Unavailable(f"no berth has ever kept its state in {where}: nothing to audit")
    for cell in settings.cell_names:
        if not await wiring.ever_made(settings, wiring.Role("conductor", cell)):
            raise Unavailable(
                f"there never was a cell {cell} in {where}: say which cells there are (--cells, BERTH_CELLS)"
            )


@dataclass(frozen=True)
class _Known:
    cell: str
    status: str
    root: str


@dataclass
class _Builds:
    builds: dict[str, _Known] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)

    def statuses(self) -> Sequence[str]:
        return [known.status for known in self.builds.values()]


async def _builds(settings: Settings) -> _Builds:
    found = _Builds()
    for cell in settings.cell_names:
        database = wiring.database(settings, wiring.Role("conductor", cell))
        try:
            for id_, standing in (await census(database)).items():
                if id_ in found.builds:
                    found.doubled.append(f"{id_}: known in cells {found.builds[id_].cell} and {cell}")
                found.builds[id_] = _Known(cell, standing.status, standing.root)
        finally:
            await database.close()
    return found


def _unheld(
    before: _Builds, after: _Builds, held: Mapping[str, tuple[int, Mapping[str, object], float]]
) -> list[str]:
    """Active builds that hold nothing, or hold something elsewhere."""
    found = []
    for id_, known in before.builds.items():
        if known.status != "active" or after.builds.get(id_) != known:
            continue
        if id_ not in held:
            found.append(f"{id_}: active on {known.root} in cell {known.cell}, and holds nothing")
        elif known.root not in held[id_][1]:
            found.append(f"{id_}: active on {known.root}, but holds resources of {', '.join(held[id_][1])}")
    return found


def _unowned(
    after: _Builds, held: Mapping[str, tuple[int, Mapping[str, object], float]], old: float
) -> list[str]:
    """Resources held for builds no cell knows, or knows to have ended."""
    found = []
    for consumer, (_, _, since) in held.items():
        known = after.builds.get(consumer)
        if known is None and since <= old:
            found.append(f"{consumer}: holds resources, and no cell knows it")
        elif known is not None and known.status in ("error", "deleted"):
            found.append(f"{consumer}: ended as {known.status} in cell {known.cell}, and holds resources")
    return found
