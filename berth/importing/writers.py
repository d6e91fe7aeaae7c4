"""Write providers into a Placement: in bulk into a berth, one by one into any other Placement."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec

from berth.kit.placement_client import PlacementClient, Rejected, each_in_parallel
from berth.kit.placement_contents import ImportedProvider
from bus.errors import Unavailable

_PORTION = 500  # providers in one request
_OLDEST = 28  # minor version; earlier versions have no generations of consumers
_TRIES = 5  # for a provider that another client changes, or after a conflict in the target's database
_CHANGED_MEANWHILE = "placement.concurrent_update"

Done = Literal["made", "changed", "same", "refused"]


@dataclass(frozen=True)
class Written:
    """The result of writing one provider into a Placement: made, changed, same, or refused with a reason."""

    provider: ImportedProvider
    did: Done
    why: str = ""  # the reason, if it was refused


# Makes providers of a Placement equal to the given providers, parents before children.
ProviderWriter = Callable[[Iterable[ImportedProvider]], Awaitable[list[Written]]]


async def writer_for(target: PlacementClient) -> ProviderWriter:
    """Return the writer for a Placement: in bulk into a berth, else one provider after the other."""
    try:
        await target.request("GET", "/berth/providers")
    except Rejected as why:
        if why.status != 404:  # 405: only POST is allowed, so it is a berth
            return partial(write_in_bulk, target)
    if target.minor < _OLDEST:
        needed = f"at least 1.{_OLDEST} is needed to write"
        raise Unavailable(f"{target.place} knows versions up to 1.{target.minor}; {needed}")
    return partial(write_stepwise, target)


async def write_in_bulk(target: PlacementClient, providers: Iterable[ImportedProvider]) -> list[Written]:
    """Write hundreds of providers to a berth in one HTTP request."""
    by_id = {provider.id: provider for provider in providers}
    if not by_id:
        return []
    body = {"providers": [_load(provider) for provider in by_id.values()]}
    try:
        results = (await target.request("POST", "/berth/providers", body))["results"]
    except Rejected as why:
        return [Written(provider, "refused", str(why)) for provider in by_id.values()]
    return [Written(by_id[row["provider"]], row["did"], row.get("why") or "") for row in results]


async def write_stepwise(target: PlacementClient, providers: Iterable[ImportedProvider]) -> list[Written]:
    """Write providers one by one by requests that any Placement has; different trees in parallel."""
    trees: list[list[ImportedProvider]] = []
    tree_of: dict[str | None, list[ImportedProvider]] = {}
    for provider in providers:
        if (tree := tree_of.get(provider.parent)) is None:
            trees.append(tree := [])
        tree_of[provider.id] = tree
        tree.append(provider)
    done: list[Written] = []

    async def write_tree(tree: list[ImportedProvider]) -> None:
        for provider in tree:
            done.append(await _written(target, provider))

    await each_in_parallel(trees, write_tree)
    return done


async def _written(target: PlacementClient, provider: ImportedProvider) -> Written:
    for _ in range(_TRIES):
        try:
            return Written(provider, await _make_equal(target, provider))
        except Rejected as why:
            refusal = why
            if why.code != _CHANGED_MEANWHILE and why.status < 500:
                break
    return Written(provider, "refused", str(refusal))


async def _make_equal(target: PlacementClient, wanted: ImportedProvider) -> Done:
    """Make a provider of the target equal to `wanted`; return "made", "changed" or "same".

    Raise Rejected if the target refuses.
    """
    at = f"/resource_providers/{wanted.id}"
    did: Done = "same"
    found = await target.provider(wanted.id)
    if found is None:
        body: dict[str, Any] = {"name": wanted.name, "uuid": wanted.id}
        body["parent_provider_uuid"] = wanted.parent
        await target.request("POST", "/resource_providers", body)
        empty = replace(wanted, inventories={}, traits=frozenset(), aggregates=frozenset())
        present, generation, did = empty, 0, "made"
    else:
        present, generation = found
    if (present.name, present.parent) != (wanted.name, wanted.parent):
        body = {"name": wanted.name}
        if present.parent != wanted.parent:
            body["parent_provider_uuid"] = wanted.parent
        await target.request("PUT", at, body)
        did = did if did == "made" else "changed"
    for part, theirs, ours, content in _parts(wanted, present):
        if theirs != ours:
            body = {**content, "resource_provider_generation": generation}
            answer = await target.request("PUT", f"{at}/{part}", body)
            generation = answer["resource_provider_generation"]
            did = did if did == "made" else "changed"
    return did


def _parts(
    wanted: ImportedProvider, present: ImportedProvider
) -> Iterator[tuple[str, object, object, dict[str, Any]]]:
    inventories = {"inventories": _inventories(wanted)}
    yield "inventories", wanted.inventories, present.inventories, inventories
    yield "traits", wanted.traits, present.traits, {"traits": sorted(wanted.traits)}
    yield "aggregates", wanted.aggregates, present.aggregates, {"aggregates": sorted(wanted.aggregates)}


def _inventories(provider: ImportedProvider) -> dict[str, Any]:
    return {name: msgspec.structs.asdict(inventory) for name, inventory in provider.inventories.items()}


def _load(provider: ImportedProvider) -> Mapping[str, Any]:
    return {
        "id": provider.id,
        "name": provider.name,
        "parent": provider.parent,
        "inventories": _inventories(provider),
        "traits": sorted(provider.traits),
        "aggregates": sorted(provider.aggregates),
    }


def portions(providers: list[ImportedProvider]) -> Iterator[list[ImportedProvider]]:
    """Yield the providers in lists, one for each request: 500 providers, and the rest of the tree of the last
    one.
    """
    portion: dict[str, ImportedProvider] = {}
    for provider in providers:
        if len(portion) >= _PORTION and provider.parent not in portion:
            yield list(portion.values())
            portion = {}
        portion[provider.id] = provider
    if portion:
        yield list(portion.values())
