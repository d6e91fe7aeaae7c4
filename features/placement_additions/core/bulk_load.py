"""Decides the result of a bulk load of providers: each tree is loaded completely, or refused with reason."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET, structs

from bus.reports import ProviderReport
from features.placement_additions.messages import LoadResult, ProviderLoad
from placement_worker.extension import ProviderState, WorkingTrees, wrong_contents

Item = tuple[int, ProviderLoad]  # index in the request (for error messages), provider to load


class _Whole(ProviderReport, frozen=True, kw_only=True):
    """A provider in a bulk load, completed: fields that the request omits have the values of the stored
    provider.
    """

    generation: int | None


_WholeItem = tuple[int, _Whole]


def wrong(items: Iterable[Item], known: Callable[[str, str], bool]) -> dict[int, str]:
    """Return the errors in providers of a bulk load, by the provider's position in the load; each text names
    the invalid field. `known` returns whether a resource class or trait exists.
    """
    found: dict[int, str] = {}
    ids: set[str] = set()
    names: set[str] = set()
    for position, load in items:
        if load.id in ids:
            why = f"id: {load.id} is there twice"
        elif load.name in names:
            why = f"name: {load.name!r} is there twice"
        elif load.parent == load.id:
            why = "parent: a provider cannot be its own parent"
        else:
            why = wrong_contents(load.contents, known)
        if why:
            found[position] = f"providers[{position}].{why}"
        ids.add(load.id)
        names.add(load.name)
    return found


def trees_of(items: Iterable[Item], homes: Mapping[str, str]) -> list[list[Item]]:
    """Group the providers of a bulk load by tree; trees between which providers move form one group. `homes`
    maps ids of stored providers to their roots.
    """
    above: dict[str, str] = {}

    def top(provider: str) -> str:
        while (upper := above.get(provider, provider)) != provider:
            above[provider] = provider = above.get(upper, upper)
        return provider

    listed = list(items)
    for _, load in listed:
        parent = load.parent or None
        for other in (homes.get(load.id), parent, homes.get(parent) if parent else None):
            if other is not None and (lower := top(other)) != (upper := top(load.id)):
                above[lower] = upper
    together: dict[str, list[Item]] = {}
    for position, load in listed:
        together.setdefault(top(load.id), []).append((position, load))
    return list(together.values())


def load(items: Sequence[Item], working: WorkingTrees) -> list[LoadResult]:
    """Create or change the providers in `items` in the trees in memory (`working`), but none if one of them
    is invalid. Return a result for each. `items` is a group that `trees_of` returned.
    """
    whole = [(position, _filled(load, working.find(load.id))) for position, load in items]
    if why := _objection(whole, working):
        return refused(items, why)
    results = {}
    for _, provider_load in whole:
        state = working.find(provider_load.id)
        if state is not None and state.name != provider_load.name:
            working.free_name(state)
    for provider_load in _parents_first(whole, working):
        results[provider_load.id] = _put(provider_load, working)
    return [results[provider_load.id] for _, provider_load in whole]


def refused(items: Iterable[Item], why: str) -> list[LoadResult]:
    return [LoadResult(provider=load.id, did="refused", why=why) for _, load in items]


def _filled(load: ProviderLoad, state: ProviderState | None) -> _Whole:
    was = ProviderState(0, load.id, load.name, None, 0, 0, {}, {}, (), ()) if state is None else state
    given = {name: value for name, value in structs.asdict(load).items() if value is not UNSET}
    return _Whole(**{"parent": was.parent, "traits": was.traits, "aggregates": was.aggregates} | given)


def _put(whole: _Whole, working: WorkingTrees) -> LoadResult:
    state = working.find(whole.id)
    traits, aggregates = tuple(sorted(set(whole.traits))), tuple(sorted(set(whole.aggregates)))
    if state is None:
        shape, used = working.next_shape(whole.id), dict.fromkeys(whole.inventories, 0)
        place = (0, whole.id, whole.name, whole.parent)
        made = ProviderState(*place, 1, shape, whole.inventories, used, traits, aggregates)
        working.put(made, whole.id if whole.parent is None else working.homes[whole.parent])
        return LoadResult(provider=whole.id, did="made", generation=1)
    changed = state if state.name == whole.name else replace(state, name=whole.name)
    if (whole.inventories, traits, aggregates) != (state.inventories, state.traits, state.aggregates):
        contents = {"inventories": whole.inventories, "traits": traits, "aggregates": aggregates}
        changed = working.with_contents(changed, **contents)
    if whole.parent != state.parent:
        changed = replace(changed, parent=whole.parent)
        working.move(changed)
    elif changed is not state:
        working.put(changed)
    if changed is state:
        return LoadResult(provider=whole.id, did="nothing", generation=state.generation)
    return LoadResult(provider=whole.id, did="changed", generation=changed.generation)


def _objection(items: Sequence[_WholeItem], working: WorkingTrees) -> str:
    parents = {whole.id: whole.parent for _, whole in items}
    before: set[str] = set()
    for position, whole in items:
        at = f"providers[{position}]"
        state = working.find(whole.id)
        if whole.parent is not None and whole.parent not in working.homes and whole.parent not in before:
            return f"{at}.parent: {whole.parent} is neither there nor named before it"
        if whole.generation is not None and (state is None or state.generation != whole.generation):
            now = "it is not there" if state is None else f"it is {state.generation} now"
            return f"{at}.generation: {whole.generation} was given, {now}"
        owner = working.owners.get(whole.name, whole.id)
        if owner != whole.id and owner not in parents:
            return f"{at}.name: {whole.name!r} is the name of provider {owner}"
        if state is not None:
            held = [name for name, amount in state.used.items() if amount and name not in whole.inventories]
            if held:
                return f"{at}.inventories: {', '.join(sorted(held))} is in use and cannot be left out"
            if whole.parent != state.parent and _in_a_loop(whole, parents, working):
                return f"{at}.parent: {whole.id} would be its own ancestor"
        before.add(whole.id)
    return ""


def _in_a_loop(whole: _Whole, parents: Mapping[str, str | None], working: WorkingTrees) -> bool:
    seen = set()
    ancestor: str | None = whole.id
    while ancestor is not None and ancestor not in seen:
        seen.add(ancestor)
        if ancestor in parents:
            ancestor = parents[ancestor]
        else:
            state = working.find(ancestor)
            ancestor = None if state is None else state.parent
    return ancestor is not None


def _parents_first(items: Sequence[_WholeItem], working: WorkingTrees) -> list[_Whole]:
    loads = {whole.id: whole for _, whole in items}
    if len(loads) == 1 or not any(load.id in working.homes for load in loads.values()):
        return list(loads.values())
    depths: dict[str, int] = {}
    for uuid in loads:
        path: list[str] = []
        ancestor: str | None = uuid
        while ancestor is not None and ancestor not in depths:
            path.append(ancestor)
            ancestor = loads[ancestor].parent if ancestor in loads else working.there(ancestor).parent
        depth = -1 if ancestor is None else depths[ancestor]
        for step in reversed(path):
            depth = depths[step] = depth + 1
    return sorted(loads.values(), key=lambda provider_load: depths[provider_load.id])
