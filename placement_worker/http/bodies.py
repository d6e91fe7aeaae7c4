"""Bodies of requests and responses of the routes under /berth; the OpenAPI document is made of them."""

import msgspec
from msgspec import UNSET, UnsetType

from bus.aggregates import Aggregate, AggregateName, HostName, Hosts, MetadataKey, MetadataValue
from bus.decisions import NearMiss, Removal
from bus.resources import LoadResult
from bus.vocabulary import Id


class AggregateCreation(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An aggregate to create."""

    name: AggregateName
    uuid: Id | None = None
    metadata: dict[MetadataKey, MetadataValue] = {}
    hosts: Hosts = ()
    force: bool = False


class AggregateChange(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A change of an aggregate; a metadata value of null removes the key."""

    name: AggregateName | None = None
    metadata: dict[MetadataKey, MetadataValue | None] = {}
    add: Hosts = ()
    remove: Hosts = ()
    force: bool = False


class HostInAggregate(msgspec.Struct, kw_only=True):
    """A host of an aggregate."""

    uuid: Id
    name: HostName


class AggregateShown(msgspec.Struct, kw_only=True):
    """An aggregate; `hosts` only if one aggregate is shown."""

    uuid: Id
    name: str
    metadata: dict[MetadataKey, MetadataValue]
    host_count: int
    hosts: list[HostInAggregate] | UnsetType = UNSET


class AggregatesListed(msgspec.Struct, kw_only=True):
    """One page of aggregates; `more` if there are further ones."""

    aggregates: list[AggregateShown]
    more: bool


class AggregateAfterEdit(msgspec.Struct, kw_only=True):
    """An aggregate after an edit; `added` and `removed` are uuids of the roots of hosts."""

    uuid: Id
    name: str
    metadata: dict[MetadataKey, MetadataValue]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    warnings: tuple[str, ...]


class LoadResults(msgspec.Struct, kw_only=True):
    """The result for each provider of a bulk load, in order."""

    results: tuple[LoadResult, ...]


class Explanation(msgspec.Struct, kw_only=True):
    """The number of hosts that each requirement of a query rejected, and the closest hosts."""

    seen: int
    considered: int
    fitting: int
    why: str
    removals: tuple[Removal, ...]
    nearest: tuple[NearMiss, ...]


class ProviderChanged(msgspec.Struct, kw_only=True):
    """A provider after a commit: only its usage changed, except if `reshaped` or `gone` (deleted)."""

    provider: str
    root: str
    generation: int
    used: dict[str, int]
    reshaped: bool
    gone: bool
    sequence: int


class ChangeEvent(msgspec.Struct, kw_only=True):
    """The data of one event of the feed: a commit with its number."""

    number: int
    changes: tuple[ProviderChanged, ...]
    aggregates: tuple[Aggregate, ...] | UnsetType = UNSET


class ApiError(msgspec.Struct, kw_only=True):
    """One error of a refusal."""

    status: int
    title: str
    detail: str
    request_id: str
    code: str | UnsetType = UNSET


class Refusal(msgspec.Struct, kw_only=True):
    """The body of a refusal, as in the Placement API."""

    errors: list[ApiError]
