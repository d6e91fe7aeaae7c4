"""The query that creates or changes thousands of providers in placement."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from bus.acts import Act, sent
from bus.feature import MessagesPart
from bus.reports import ProviderReport
from bus.resources import Inventories
from bus.topics import ANYONE, Query
from bus.vocabulary import (
    Cause,
    Id,
    LongList,
    Message,
    Name,
    Ordinal,
    ShortList,
    Text,
    TraitName,
    Value,
    Whole,
)


class ProviderLoad(Value, frozen=True, kw_only=True):
    """A provider to create or change; with `generation`, only if the provider's generation is the same.

    Omitted fields stay unchanged.
    """

    id: Id
    name: Name
    parent: Id | UnsetType | None = UNSET
    inventories: Inventories
    traits: ShortList[TraitName] | UnsetType = UNSET
    aggregates: ShortList[Id] | UnsetType = UNSET
    generation: Ordinal | None = None

    @property
    def contents(self) -> ProviderReport:
        """Return the provider without the fields that decide where it is, and whether it may change."""
        traits, aggregates = self.traits or (), self.aggregates or ()
        return ProviderReport(
            id=self.id, name=self.name, inventories=self.inventories, traits=traits, aggregates=aggregates
        )


class LoadResult(Value, frozen=True, kw_only=True):
    provider: Text
    did: Literal["made", "changed", "nothing", "refused"]
    generation: Whole = 0
    why: Cause = ""  # why the provider was refused: the field and the problem


class LoadProviders(Message, frozen=True, kw_only=True):
    """Create or change the providers, parents before children. Each tree is loaded completely or not at all.

    Unknown resource classes, traits and aggregates are created. All other providers stay unchanged.
    """

    providers: Annotated[tuple[ProviderLoad, ...], Meta(min_length=1, max_length=20_000)]


class ProvidersLoaded(Message, frozen=True, kw_only=True):
    results: LongList[LoadResult]  # one for each provider, in order


LOAD = Query(
    "placement.load",
    LoadProviders,
    ProvidersLoaded,
    "create or change thousands of providers in one request",
    ANYONE,
    "placement",
)


PART = MessagesPart(acts=(Act("load providers", "admin", "create and change many providers", sent(LOAD)),))
