"""Checks of reports and loads: their contents, and whether a cell may report a root."""

import re
from collections.abc import Callable

from bus.messages import InventoryReported
from bus.reports import ProviderReport
from bus.resources import ProviderLoad

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")
MAX_NAMES = 100_000  # characters; every candidate contains the names of its provider several times


def complaint(report: InventoryReported, known: Callable[[str, str], bool]) -> str:
    """Return what is wrong with a report of a provider tree, naming the field, or an empty text."""
    if report.gone:
        return "reshape: of a tree that is gone" if report.reshape else ""
    if not report.providers:
        return "providers: none; to say that the tree is no more, set gone"
    if report.providers[0].id != report.root:
        return f"providers[0].id: the first provider must be the root, {report.root}"
    ids: set[str] = set()
    names: set[str] = set()
    for position, provider in enumerate(report.providers):
        at = f"providers[{position}]"
        if provider.id in ids:
            return f"{at}.id: {provider.id} is there twice"
        if provider.name in names:
            return f"{at}.name: {provider.name!r} is there twice"
        ids.add(provider.id)
        names.add(provider.name)
        if wrong := wrong_contents(provider, known):
            return f"{at}.{wrong}"
    return _wrong_parents(report.providers) or _wrong_reshape(report)


def wrong_contents(provider: ProviderReport | ProviderLoad, known: Callable[[str, str], bool]) -> str:
    """Return what is wrong with inventories, traits or aggregates, naming the field, or an empty text."""
    for name, inventory in provider.inventories.items():
        if not (known("resource class", name) or is_custom(name)):
            return f"inventories.{name}: no such resource class; those of your own begin with CUSTOM_"
        if inventory.reserved > inventory.total:
            return (
                f"inventories.{name}.reserved: {inventory.reserved} is more than the total, {inventory.total}"
            )
    for name in provider.traits or ():
        if not (known("trait", name) or is_custom(name)):
            return f"traits: no such trait {name}; those of your own begin with CUSTOM_"
    size = sum(map(len, (*provider.inventories, *(provider.traits or ()))))
    if size > MAX_NAMES:
        return f"inventories and traits: their names are {size} characters together, at most {MAX_NAMES}"
    return ""


def is_custom(name: str) -> bool:
    """Return whether clients may create a resource class or trait of this name."""
    return _CUSTOM.fullmatch(name) is not None


def _wrong_parents(providers: tuple[ProviderReport, ...]) -> str:
    parents = {provider.id: provider.parent for provider in providers}
    for position, provider in enumerate(providers):
        at = f"providers[{position}].parent"
        if position == 0:
            if provider.parent is not None:
                return f"{at}: the first provider is the root and has none"
        elif provider.parent is None:
            return f"{at}: only the first provider, the root, has none"
        elif provider.parent not in parents:
            return f"{at}: {provider.parent} is not in this tree"
    rooted = {providers[0].id}
    for position, provider in enumerate(providers):
        path: list[str] = []
        here: str | None = provider.id
        while here is not None and here not in rooted:
            if here in path:
                return f"providers[{position}].parent: {provider.id} is its own ancestor"
            path.append(here)
            here = parents[here]
        rooted.update(path)
    return ""


def _wrong_reshape(report: InventoryReported) -> str:
    if report.reshape is None:
        return ""
    has = {provider.id: provider.inventories for provider in report.providers}
    seen: set[tuple[str, str]] = set()
    for position, move in enumerate(report.reshape.moves):
        at = f"reshape.moves[{position}]"
        if (move.provider, move.resource_class) in seen:
            return f"{at}: {move.resource_class} of {move.provider} is there twice"
        seen.add((move.provider, move.resource_class))
        if move.resource_class in has.get(move.provider, {}):
            return f"{at}.resource_class: {move.provider} still has {move.resource_class} in this report"
        name = move.becomes or move.resource_class
        for to in move.to:
            if to not in has:
                return f"{at}.to: {to} is not in this tree"
            if name not in has[to]:
                return f"{at}.to: {to} has no {name} in this report"
    guests = [(guest.build, guest.attempt) for guest in report.reshape.guests]
    if len(guests) > len(set(guests)):
        build, attempt = next(one for index, one in enumerate(guests) if one in guests[:index])
        return f"reshape.guests: attempt {attempt} of {build} is there twice"
    return ""


DAY = 24 * 3600.0


def bars_report(cell: str, owner: str, *, known: bool, sequence: int, now: float) -> str:
    """Return why a cell cannot report a root that `owner` owns (`known`: it exists), or an empty text."""
    if owner and owner != cell:
        return f"root: it is of cell {owner}; reports of cell {cell} are not believed"
    if known and not owner:
        return f"root: an operator made it; `berth provider reset ROOT --cell {cell}` gives it to cell {cell}"
    if sequence > (now + DAY) * 1_000_000:
        return f"sequence: {sequence} is more than a day ahead of placement's clock"
    return ""


def names_apart(name: str, cell: str, provider: str) -> tuple[str, ...]:
    """Yield other names for a provider whose name another cell uses; the first free name is taken."""
    at = f"@{cell}"
    long = f"{at}@{provider}"
    return f"{name[: 200 - len(at)]}{at}", f"{name[: 200 - len(long)]}{long}"
