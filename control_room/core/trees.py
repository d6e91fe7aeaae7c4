"""A host's providers as a tree of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bus.resources import Provider


@dataclass(frozen=True, kw_only=True)
class StockShown:
    resource_class: str
    used: int
    capacity: int
    total: int
    reserved: int
    ratio: float
    share: float


@dataclass(frozen=True, kw_only=True)
class ProviderShown:
    id: str
    name: str
    depth: int
    stocks: tuple[StockShown, ...]
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]


def rows(tree: Sequence[Provider]) -> list[ProviderShown]:
    """Each below its parent, siblings by name; what has lost its parent comes last."""
    below: dict[str | None, list[Provider]] = {}
    known = {one.id for one in tree}
    for one in sorted(tree, key=lambda one: one.name):
        below.setdefault(one.parent if one.parent in known else None, []).append(one)

    def walk(parent: str | None, depth: int) -> Iterator[ProviderShown]:
        for one in below.get(parent, ()):
            yield _shown(one, depth)
            yield from walk(one.id, depth + 1)

    return list(walk(None, 0))


def _shown(one: Provider, depth: int) -> ProviderShown:
    stocks = []
    for name, has in sorted(one.inventories.items()):
        used = one.used.get(name, 0)
        stocks.append(
            StockShown(
                resource_class=name,
                used=used,
                capacity=has.capacity,
                total=has.total,
                reserved=has.reserved,
                ratio=has.allocation_ratio,
                share=min(1.0, used / has.capacity) if has.capacity else float(used > 0),
            )
        )
    return ProviderShown(
        id=one.id,
        name=one.name,
        depth=min(depth, 6),
        stocks=tuple(stocks),
        traits=one.traits,
        aggregates=one.aggregates,
    )
