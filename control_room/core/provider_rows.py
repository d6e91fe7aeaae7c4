"""A host's providers as a tree of rows."""

from collections.abc import Sequence
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
    """Return each provider below its parent, siblings by name; one without its parent is at the top."""
    below: dict[str | None, list[Provider]] = {}
    known = {provider.id for provider in tree}
    for provider in sorted(tree, key=lambda provider: provider.name, reverse=True):
        below.setdefault(provider.parent if provider.parent in known else None, []).append(provider)
    found = []
    left = [(provider, 0) for provider in below.get(None, ())]
    while left:  # a tree may be deeper than Python's stack
        one, depth = left.pop()
        found.append(_shown(one, depth))
        left += [(child, depth + 1) for child in below.get(one.id, ())]
    return found


def _shown(provider: Provider, depth: int) -> ProviderShown:
    stocks = []
    for name, has in sorted(provider.inventories.items()):
        used = provider.used.get(name, 0)
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
        id=provider.id,
        name=provider.name,
        depth=min(depth, 6),
        stocks=tuple(stocks),
        traits=provider.traits,
        aggregates=provider.aggregates,
    )
