"""The providers and consumers of a Placement, as they are read over its HTTP API."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bus.reports import Inventory


@dataclass(frozen=True)
class ImportedProvider:
    """A resource provider as another Placement stores it."""

    id: str
    name: str
    parent: str | None
    inventories: Mapping[str, Inventory]
    traits: frozenset[str]
    aggregates: frozenset[str]


@dataclass(frozen=True)
class ImportedConsumer:
    """A consumer with its allocations; its type is None if Placement has not recorded one."""

    id: str
    project: str
    user: str
    type: str | None
    allocations: Mapping[str, Mapping[str, int]]
    generation: int = 0


@dataclass
class PlacementContents:
    """The contents of another Placement, by uuid."""

    providers: dict[str, ImportedProvider] = field(default_factory=dict)
    consumers: dict[str, ImportedConsumer] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)  # custom classes
    traits: set[str] = field(default_factory=set)  # custom traits

    def untyped(self) -> "PlacementContents":
        """Return a copy without consumer types, to compare with a Placement of an older microversion."""
        consumers = {id_: replace(consumer, type=None) for id_, consumer in self.consumers.items()}
        return replace(self, consumers=consumers)

    def used(self, provider: str, resource_class: str) -> int:
        """Return the total of all allocations of a resource class from a provider."""
        return sum(
            consumer.allocations[provider].get(resource_class, 0)
            for consumer in self.consumers.values()
            if provider in consumer.allocations
        )

    def root_of(self, provider: str) -> str:
        """Return the root of a provider's tree, as far as the parents are among the contents."""
        while (parent := self.providers[provider].parent) in self.providers:
            assert parent is not None
            provider = parent
        return provider

    def parents_first(self, ids: set[str]) -> list[ImportedProvider]:
        """Return the providers with the given ids tree by tree, each parent before its children."""
        below: dict[str | None, list[ImportedProvider]] = {}
        for provider in self.providers.values():
            if provider.id in ids:
                parent = provider.parent if provider.parent in ids else None
                below.setdefault(parent, []).append(provider)
        ordered: list[ImportedProvider] = []
        waiting = below.get(None, [])[::-1]
        while waiting:
            ordered.append(provider := waiting.pop())
            waiting += below.get(provider.id, [])[::-1]
        return ordered
