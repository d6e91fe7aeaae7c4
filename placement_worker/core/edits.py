"""Decides edits of provider trees: the trees after an edit, or the reason to refuse it."""

from collections.abc import Collection
from dataclasses import replace

from msgspec import UNSET

from bus.resources import (
    AddInventory,
    ChangeProvider,
    DropInventory,
    DropProvider,
    HasChildren,
    MakeProvider,
    Reshape,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    Stale,
    Tangled,
)
from bus.vocabulary import InUse, Missing, Taken
from placement_worker.core.trees import KnownNames, ProviderState, WorkingTrees

EditOfOneInventory = AddInventory | SetInventory | DropInventory
EditOfInventory = SetInventories | EditOfOneInventory
EditOfOne = MakeProvider | ChangeProvider | DropProvider | EditOfInventory | SetTraits | SetAggregates
Refused = Missing | Stale | Taken | InUse | HasChildren | Tangled


def apply(edit: EditOfOne, working: WorkingTrees, known: KnownNames) -> ProviderState | Refused | None:
    """Apply an edit to a provider in memory. Return the changed provider, None if the edit deleted it, or a
    refusal, which leaves the trees unchanged.
    """
    if isinstance(edit, MakeProvider):
        return _make(edit, working)
    state = _found(edit, working)
    if not isinstance(state, ProviderState):
        return state
    match edit:
        case ChangeProvider():
            return _change(edit, state, working)
        case DropProvider():
            return _drop(state, working)
        case SetTraits():
            return _set_traits(edit, state, working, known)
        case SetAggregates():
            return _set_aggregates(edit, state, working)
        case _:
            return _set_inventories(edit, state, working, known)


def _found(edit: EditOfOne, working: WorkingTrees) -> ProviderState | Missing | Stale:
    state = working.find(edit.provider)
    if state is None:
        return Missing(what="provider", names=(edit.provider,))
    given = getattr(edit, "generation", None)
    if given is not None and given != state.generation:
        return Stale(provider=edit.provider, actual=state.generation, given=given)
    return state


def _make(edit: MakeProvider, working: WorkingTrees) -> ProviderState | Refused:
    if edit.parent == edit.provider:
        return Tangled(why="itself", provider=edit.provider, parent=edit.parent)
    if edit.parent is not None and edit.parent not in working.homes:
        return Missing(what="parent", names=(edit.parent,))
    if edit.provider in working.taken or edit.provider in working.homes:
        return Taken(what="id", value=edit.provider)
    if edit.name in working.owners:
        return Taken(what="name", value=edit.name)
    shape = working.next_shape(edit.provider)
    state = ProviderState(0, edit.provider, edit.name, edit.parent, 0, shape, {}, {}, (), ())
    working.put(state, edit.provider if edit.parent is None else working.homes[edit.parent])
    return state


def _change(edit: ChangeProvider, state: ProviderState, working: WorkingTrees) -> ProviderState | Refused:
    parent = state.parent if edit.parent is UNSET else edit.parent
    if refusal := _tangle(edit, state, parent, working):
        return refusal
    if working.owners.get(edit.name, state.uuid) != state.uuid:
        return Taken(what="name", value=edit.name)
    if edit.name != state.name:
        working.free_name(state)
        working.put(replace(state, name=edit.name))
    if parent != state.parent:
        working.move(replace(working.there(state.uuid), parent=parent))
    return working.there(state.uuid)


def _tangle(
    edit: ChangeProvider, state: ProviderState, parent: str | None, working: WorkingTrees
) -> Missing | Tangled | None:
    if parent == state.parent:
        return None
    if parent is None:
        return None if edit.anywhere else Tangled(why="un-parenting", provider=state.uuid, parent=None)
    if parent not in working.homes:
        return Missing(what="parent", names=(parent,))
    if state.parent is not None and not edit.anywhere:
        return Tangled(why="re-parenting", provider=state.uuid, parent=parent)
    ancestor: str | None = parent
    while ancestor is not None and ancestor != state.uuid:
        ancestor = working.there(ancestor).parent
    if ancestor is not None:
        return Tangled(why="loop", provider=state.uuid, parent=parent)
    return None


def _drop(state: ProviderState, working: WorkingTrees) -> Refused | None:
    home = working.members[working.homes[state.uuid]]
    if any(provider.parent == state.uuid for provider in home.values()):
        return HasChildren(provider=state.uuid)
    if state.in_use:
        return InUse(what=state.uuid)
    working.drop(state)
    return None


def _in_use(state: ProviderState, stay: Collection[str], known: KnownNames) -> InUse | None:
    held = [name for name, amount in state.used.items() if amount and name not in stay]
    held.sort(key=known.classes.__getitem__)
    return InUse(what=state.uuid, classes=tuple(held)) if held else None


def _set_inventories(
    edit: EditOfInventory, state: ProviderState, working: WorkingTrees, known: KnownNames
) -> ProviderState | Refused:
    named = edit.inventories if isinstance(edit, SetInventories) else (edit.resource_class,)
    if unknown := tuple(sorted(name for name in named if name not in known.classes)):
        return Missing(what="resource class", names=unknown)
    match edit:
        case SetInventories():
            after = edit.inventories
        case AddInventory(resource_class=name):
            if name in state.inventories:
                return Taken(what="inventory", value=name)
            after = {**state.inventories, name: edit.inventory}
        case SetInventory(resource_class=name) | DropInventory(resource_class=name):
            if name not in state.inventories:
                return Missing(what="inventory", names=(name,), provider=state.uuid)
            after = dict(state.inventories)
            if isinstance(edit, SetInventory):
                after[name] = edit.inventory
            else:
                del after[name]
    if refusal := _in_use(state, after, known):
        return refusal
    if after == state.inventories:
        changed = replace(state, generation=state.generation + 1)
    else:
        changed = working.with_contents(state, inventories=after)
    working.put(changed)
    return changed


def _set_traits(
    edit: SetTraits, state: ProviderState, working: WorkingTrees, known: KnownNames
) -> ProviderState | Refused:
    if unknown := tuple(sorted(name for name in edit.traits if name not in known.traits)):
        return Missing(what="trait", names=unknown)
    traits = tuple(sorted({*edit.traits, *state.reported.traits}))  # the agent alone removes its traits
    if traits != state.traits:
        state = working.with_contents(state, traits=traits)
        working.put(state)
    return state


def _set_aggregates(edit: SetAggregates, state: ProviderState, working: WorkingTrees) -> ProviderState:
    aggregates = tuple(sorted(set(edit.aggregates)))
    changed = state
    if aggregates != state.aggregates:
        changed = replace(state, aggregates=aggregates, shape=working.next_shape(state.uuid))
    if edit.generation is not None:
        changed = replace(changed, generation=state.generation + 1)
    if changed is not state:
        working.put(changed)
    return changed


# A reshape has two steps: `widen` combines old and new inventory, so that allocations can move; then `settle`
# removes the old inventory.


def widen(edit: Reshape, working: WorkingTrees, known: KnownNames) -> Refused | None:
    """Begin a reshape: in `working`, give each provider of the edit its old and its new inventory together.
    Return a refusal, and change nothing more, if a provider, or a resource class in `known`, does not exist.
    """
    for inventory in edit.inventories:
        if not isinstance(found := _found(inventory, working), ProviderState):
            return found
    named = {name for inventory in edit.inventories for name in inventory.inventories}
    if unknown := tuple(sorted(name for name in named if name not in known.classes)):
        return Missing(what="resource class", names=unknown)
    for inventory in edit.inventories:
        state = working.there(inventory.provider)
        both = working.with_contents(state, inventories={**state.inventories, **inventory.inventories})
        interim = state.generation + bool(inventory.inventories)
        working.put(replace(both, generation=interim, shape=state.shape))
    return None


def settle(edit: Reshape, working: WorkingTrees, known: KnownNames) -> InUse | None:
    """Complete a reshape: remove each provider's old inventory, or return which allocations prevent that."""
    for inventory in edit.inventories:
        state = working.there(inventory.provider)
        if refusal := _in_use(state, inventory.inventories, known):
            return refusal
        same = inventory.inventories == working.was[inventory.provider].inventories
        after = working.with_contents(state, inventories=inventory.inventories)
        working.put(replace(after, shape=state.shape) if same else after)
    return None
