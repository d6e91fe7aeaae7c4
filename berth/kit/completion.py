"""Completes names of hosts and cells in a shell, from the berth that the settings name."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import click

from berth import composition
from berth.configuration import read
from bus import topics
from bus.cells import FindCells
from bus.delivery.runner import Bus
from bus.resources import FindProviders

_SECONDS = 1.0  # a shell waits for the names
_PAGE, _MOST = 500, 5_000  # hosts of a query, and of a completion

Find = Callable[[Bus, str], Awaitable[list[str]]]


async def host_names(bus: Bus, begin: str) -> list[str]:
    """Return the names of hosts and bare-metal nodes that begin with a text."""
    ask, after, found = bus.asker(topics.PROVIDERS, _SECONDS), "", list[str]()
    for _ in range(_MOST // _PAGE):
        page = (await ask(FindProviders(parts=("owner",), after=after, limit=_PAGE))).providers
        roots = [provider for provider in page if provider.parent is None]
        found += [name for root in roots if (name := root.host or root.name).startswith(begin)]
        if len(page) < _PAGE:
            break
        after = max(provider.id for provider in page)
    return sorted({*found})


async def cell_names(bus: Bus, begin: str) -> list[str]:
    """Return the names of cells that begin with a text."""
    found = await bus.asker(topics.CELLS, _SECONDS)(FindCells())
    return sorted(
        name for name in {cell.name for cell in found.cells} | {*found.hosts} if name.startswith(begin)
    )


_FINDS: Mapping[str, Find] = {"host": host_names, "cell": cell_names}


def names(kind: str, context: click.Context, begin: str) -> list[str]:
    """Return the names of hosts or cells that begin with a text. If no berth answers within a second, return
    none: an error would be printed into the line that the operator types.
    """
    config = context.find_root().params.get("config")
    try:
        return asyncio.run(_found(_FINDS[kind], Path(str(config)) if config else None, begin))
    except Exception:
        return []


async def _found(find: Find, config: Path | None, begin: str) -> list[str]:
    settings = read(file=config).settings
    async with asyncio.timeout(_SECONDS), Bus(composition.transport(settings, "completion")) as bus:
        return await find(bus, begin)
