"""Parts of a request: flavor, image, scheduler hints about the host, and groups of requested resources."""

from typing import Annotated

from msgspec import Meta, field

from bus.vocabulary import (
    FREE,
    UNSAID_ID,
    AggregateId,
    Count,
    FreeName,
    FreeText,
    InstanceId,
    KeystoneId,
    Properties,
    ProviderId,
    Resources,
    ShortList,
    TraitName,
    Value,
    WordOrNone,
)


class Hints(Value, frozen=True, kw_only=True):
    """A request's scheduler hints, as in Nova: instances whose hosts the request must use or avoid, and
    conditions on the host. Clients may also write hints of features here, such as the server group to join.
    """

    same_host: ShortList[InstanceId] = ()  # instances: only hosts with at least one of them
    different_host: ShortList[InstanceId] = ()  # instances: only hosts without any of them
    build_near_host_ip: FreeText = ""
    cidr: FreeText = "/24"
    query: Annotated[str, Meta(max_length=4000), FREE] = ""  # Nova's JsonFilter: [">=", "$free_ram_mb", 1024]


class Flavor(Value, frozen=True, kw_only=True):
    """The size of an instance, and extra specs as Nova defines them."""

    name: FreeName
    vcpus: Count = 0
    memory_mb: Count = 0
    disk_gb: Count = 0
    extra_specs: Properties = field(default_factory=dict)


class Image(Value, frozen=True, kw_only=True):
    """The image of an instance, as far as placement depends on it."""

    name: FreeName
    properties: Properties = field(default_factory=dict)
    traits_required: ShortList[TraitName] = ()


Suffix = Annotated[WordOrNone, FREE]
InstanceName = Annotated[str, Meta(max_length=255), FREE]


class BuildSpec(Value, frozen=True, kw_only=True):
    """The data that an agent needs to create one instance."""

    flavor: Flavor
    image: Image | None = None
    project: KeystoneId = UNSAID_ID
    user: KeystoneId = UNSAID_ID
    metadata: Properties = field(default_factory=dict)
    name: InstanceName = ""  # display name


class ResourceGroup(Value, frozen=True, kw_only=True):
    """A request group: resources that must come from one provider. Only in the group without a suffix may
    resources come from several providers of a tree.

    A group without resources requires a provider with its traits, which `same_subtree` relates to the
    providers of other groups.
    """

    suffix: Suffix = ""
    resources: Resources = field(default_factory=dict)
    required: ShortList[TraitName] = ()
    forbidden: ShortList[TraitName] = ()
    member_of: ShortList[ShortList[AggregateId]] = ()  # at least one aggregate of every inner list
    required_any: ShortList[ShortList[TraitName]] = ()  # at least one trait of every inner list
    not_member_of: ShortList[AggregateId] = ()
    in_tree: ProviderId | None = None  # id of any provider in the tree
