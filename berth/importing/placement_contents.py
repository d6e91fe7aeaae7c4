"""Represents the contents of a Placement, and computes the differences between two Placements."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from berth.kit.placement_contents import ImportedProvider, PlacementContents
from bus.reports import Inventory


@dataclass(frozen=True)
class ContentsDifference:
    """A difference between two Placements; `what` is the object's type, such as provider or trait."""

    what: str
    id: str
    says: str
    ours_alone: bool = False  # only berth has this object

    def __str__(self) -> str:
        return f"{self.what} {self.id}: {self.says}"


def differences(theirs: PlacementContents, ours: PlacementContents) -> list[ContentsDifference]:
    """Return how `ours`, an import's target, differs from the source `theirs`. Resource classes and traits
    that only `ours` has are not returned.
    """
    names = [("class", name) for name in sorted(theirs.classes - ours.classes)]
    names += [("trait", name) for name in sorted(theirs.traits - ours.traits)]
    missing = [ContentsDifference(kind, name, "missing here") for kind, name in names]
    return [*missing, *_of_providers(theirs, ours), *_of_consumers(theirs, ours)]


def unimportable(theirs: PlacementContents, ours: PlacementContents, prune: bool) -> dict[str, str]:
    """Return the ids of providers and consumers that cannot be imported into `ours`, with reasons.

    A provider tree is refused if a provider that only `ours` has uses one of its names, and a consumer if it
    has allocations on a refused provider that `ours` lacks. With `prune` nothing is refused: providers that
    only `ours` has are deleted.
    """
    if prune:
        return {}
    names = {ours.providers[id_].name: id_ for id_ in ours.providers.keys() - theirs.providers.keys()}
    trees = {}
    for id_, imported in theirs.providers.items():
        if (owner := names.get(imported.name)) is not None:
            why = f"{imported.name!r} is the name of provider {owner}, which is only here"
            trees[theirs.root_of(id_)] = why
    refused = {id_: trees[root] for id_ in theirs.providers if (root := theirs.root_of(id_)) in trees}
    missing = refused.keys() - ours.providers.keys()
    for consumer in theirs.consumers.values():
        for provider in missing & consumer.allocations.keys():
            refused[consumer.id] = f"provider {provider} is not here: {refused[provider]}"
    return refused


def _of_providers(theirs: PlacementContents, ours: PlacementContents) -> Iterator[ContentsDifference]:
    for id_, this in theirs.providers.items():
        that = ours.providers.get(id_)
        if that is None:
            yield ContentsDifference("provider", id_, f"{this.name!r} is missing here")
        else:
            for part in _parts(this, that):
                yield ContentsDifference("provider", id_, f"{this.name!r}: {part}")
    for id_ in ours.providers.keys() - theirs.providers.keys():
        sentence = f"{ours.providers[id_].name!r} is only here"
        yield ContentsDifference("provider", id_, sentence, ours_alone=True)


def _parts(this: ImportedProvider, that: ImportedProvider) -> Iterator[str]:
    if this.name != that.name:
        yield f"its name is {that.name!r} here"
    if this.parent != that.parent:
        yield f"its parent is {that.parent} here, not {this.parent}"
    for class_ in sorted(this.inventories.keys() | that.inventories.keys()):
        other, mine = this.inventories.get(class_), that.inventories.get(class_)
        if other is None or mine is None:
            yield f"inventory of {class_} is {'missing' if mine is None else 'only'} here"
        elif other != mine:
            yield f"inventory of {class_} has {_unlike(mine, other)} here, not {_unlike(other, mine)}"
    names = {"trait": (this.traits, that.traits), "aggregate": (this.aggregates, that.aggregates)}
    for kind, (theirs, ours) in names.items():
        for name in sorted(theirs ^ ours):
            yield f"{kind} {name} is {'missing' if name in theirs else 'only'} here"


def _unlike(inventory: Inventory, other: Inventory) -> str:
    names = Inventory.__struct_fields__
    unlike = [name for name in names if getattr(inventory, name) != getattr(other, name)]
    return ", ".join(f"{name} {getattr(inventory, name)}" for name in unlike)


def _of_consumers(theirs: PlacementContents, ours: PlacementContents) -> Iterator[ContentsDifference]:
    for id_, this in theirs.consumers.items():
        that = ours.consumers.get(id_)
        if that is None:
            yield ContentsDifference(
                "consumer", id_, f"holds nothing here, there {_listed(this.allocations)}"
            )
            continue
        for name in ("project", "user", "type"):
            their_value, our_value = getattr(this, name), getattr(that, name)
            if their_value != our_value and their_value is not None:  # None: any type is right
                yield ContentsDifference(
                    "consumer", id_, f"its {name} is {our_value!r} here, not {their_value!r}"
                )
        if this.allocations != that.allocations:
            sentence = f"holds {_listed(that.allocations)} here, there {_listed(this.allocations)}"
            yield ContentsDifference("consumer", id_, sentence)
    for id_ in ours.consumers.keys() - theirs.consumers.keys():
        sentence = f"holds {_listed(ours.consumers[id_].allocations)} only here"
        yield ContentsDifference("consumer", id_, sentence, ours_alone=True)


def _listed(allocations: Mapping[str, Mapping[str, Any]]) -> str:
    shares = (
        f"{amount} {class_} of {provider}"
        for provider, resources in sorted(allocations.items())
        for class_, amount in sorted(resources.items())
    )
    return ", ".join(shares) or "nothing"
