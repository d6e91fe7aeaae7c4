"""Edits the traits of hosts by which they are closed for a cause, or marked as forced down."""

from collections.abc import Callable, Sequence

from bus.errors import Retry
from bus.host_health import FORCED_DOWN, HELD, closed_for, opened_for
from bus.names import MakeName, NameEditRequested
from bus.resources import Edited, EditRequested, FindProviders, Provider, SetTraits, Stale
from bus.vocabulary import Id, Missing
from scheduler_worker.extension import PlacementQueries

TRIES = 8  # attempts of an edit while other writers change the host


def cause_trait(cause: str) -> str:
    """Return the trait by which a host is disabled for this cause."""
    return f"{HELD}{cause.upper()}"


async def close_host(placement: PlacementQueries, root: Id, cause: str) -> None:
    """Disable a host for a cause; do nothing if placement has deleted the host."""
    await placement.edit_name(NameEditRequested(kind="trait", edit=MakeName(name=cause_trait(cause))))
    await _edit(placement, root, lambda host: closed_for(cause, host.traits, host.kept_traits))


async def open_host(placement: PlacementQueries, root: Id, cause: str) -> None:
    """Remove one cause for which a host is disabled; without further causes, the host is enabled."""
    await _edit(placement, root, lambda host: opened_for(cause, host.traits, host.kept_traits))


async def force_down_host(placement: PlacementQueries, root: Id) -> None:
    """Mark a host as down, so that its instances may be evacuated although its agent may report."""
    await placement.edit_name(NameEditRequested(kind="trait", edit=MakeName(name=FORCED_DOWN)))
    await _edit(placement, root, lambda host: {*host.traits, FORCED_DOWN})


async def _edit(placement: PlacementQueries, root: Id, change: Callable[[Provider], set[str]]) -> None:
    for _ in range(TRIES):
        question = FindProviders(ids=(root,), parts=("traits", "owner"))
        found: Sequence[Provider] = (await placement.providers(question)).providers
        if not found:
            return
        traits = change(found[0])
        if traits == {*found[0].traits}:
            return
        edit = SetTraits(provider=root, traits=tuple(sorted(traits)), generation=found[0].generation)
        result = (await placement.edit(EditRequested(edit=edit))).result
        if isinstance(result, Edited | Missing):
            return
        if not isinstance(result, Stale):
            break
    raise Retry(after=1.0, why=f"host {root}: other writers keep changing it")
