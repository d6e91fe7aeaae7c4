"""The types of request and response bodies; the OpenAPI document is made from them."""

import msgspec
from msgspec import UNSET, UnsetType

from bus.aggregates import Aggregate, AggregateName, HostName, Hosts, MetadataKey, MetadataValue
from bus.decisions import NearMiss, Removal
from bus.vocabulary import Id
from features.placement_additions.messages import LoadResult


class AggregateCreation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The request to create an aggregate."""

    name: AggregateName
    uuid: Id | None = None
    metadata: dict[MetadataKey, MetadataValue] = {}
    hosts: Hosts = ()
    force: bool = False


class AggregateChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The request to change an aggregate; a metadata value of null removes its key."""

    name: AggregateName | None = None
    metadata: dict[MetadataKey, MetadataValue | None] = {}
    add: Hosts = ()
    remove: Hosts = ()
    force: bool = False


class HostInAggregate(msgspec.Struct, kw_only=True):
    """A host in an aggregate."""

    uuid: Id
    name: HostName


class AggregateShown(msgspec.Struct, kw_only=True):
    """An aggregate; `hosts` is present only if a single aggregate is requested."""

    uuid: Id
    name: str
    metadata: dict[MetadataKey, MetadataValue]
    host_count: int
    hosts: list[HostInAggregate] | UnsetType = UNSET


class AggregatesListed(msgspec.Struct, kw_only=True):
    """A page of aggregates; `more` is true if another page follows."""

    aggregates: list[AggregateShown]
    more: bool


class AggregateAfterEdit(msgspec.Struct, kw_only=True):
    """An aggregate after an edit; `added` and `removed` are the uuids of hosts' root providers."""

    uuid: Id
    name: str
    metadata: dict[MetadataKey, MetadataValue]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    warnings: tuple[str, ...]


class LoadResults(msgspec.Struct, kw_only=True):
    """The results of a bulk load, one for each provider, in the sequence of the request."""

    results: tuple[LoadResult, ...]


class Explanation(msgspec.Struct, kw_only=True):
    """The number of hosts that each requirement of a query removed, and the hosts that nearly fit."""

    seen: int
    considered: int
    fitting: int
    why: str
    removals: tuple[Removal, ...]
    nearest: tuple[NearMiss, ...]


class ProviderChanged(msgspec.Struct, kw_only=True):
    """The state of a provider after a commit. Only usage and generation changed, unless `reshaped` (other
    contents changed too) or `gone` (the provider was deleted) is true.
    """

    provider: str
    root: str
    generation: int
    used: dict[str, int]
    reshaped: bool
    gone: bool
    sequence: int


class ChangeEvent(msgspec.Struct, kw_only=True):
    """The data of one event in the stream of changes: a commit with its change number."""

    number: int
    changes: tuple[ProviderChanged, ...]
    aggregates: tuple[Aggregate, ...] | UnsetType = UNSET
