"""The values that travel inside messages: resources, hosts, candidates, claims and refusals."""

from typing import Annotated, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Meta

MAX_INT = 2**31 - 1
MAX_ORDINAL = 2**62
END = r"$(?!\n)"  # of a text: $ alone lets a last newline through

Id = Annotated[
    str,
    Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" + END, description="a lower-case UUID"),
]
Word = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}" + END, description="one word: letters, digits, _ and -")
]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Zone = Annotated[str, Meta(max_length=255)]  # empty: none
Cause = Annotated[str, Meta(max_length=4000)]
ClassName = Annotated[
    str, Meta(pattern=r"^[A-Z0-9_]{1,255}" + END, description="VCPU, MEMORY_MB, CUSTOM_...")
]
TraitName = Annotated[
    str, Meta(pattern=r"^[A-Z0-9_]{1,255}" + END, description="HW_CPU_X86_AVX2, CUSTOM_...")
]
Amount = Annotated[int, Meta(ge=1, le=MAX_INT)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Ordinal = Annotated[int, Meta(ge=0, le=MAX_ORDINAL)]
Seconds = Annotated[float, Meta(ge=0)]


Resources = dict[ClassName, Amount]
Allocations = dict[Id, Resources]  # provider → how much of what
Shapes = dict[Id, Ordinal]  # provider → the shape it was chosen under

CLEANUP = "CLEANUP"  # the type of consumers that keep the room of a guest nobody wants, until it is gone
MIGRATION = (
    "MIGRATION"  # of those that keep the place a build has moved from, for its way back or until it is gone
)
KEEPERS = (CLEANUP, MIGRATION)


def keeper(build: str, attempt: int) -> str:
    """The consumer that keeps the room of what may be left of this attempt."""
    return str(uuid5(UUID(build), f"what is left of attempt {attempt}"))


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A value that travels by name: fields may be added with defaults, never renamed.

    None can be part of a cycle, so the collector need not look at them: it cost a busy worker a tenth.
    """


class Compact(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value that travels by position, for what is repeated by the hundred: append fields only."""


class Tagged(Value, frozen=True, kw_only=True, tag_field="is", tag=True):
    """One of several possible answers; the wire names which."""


# Resources and who reports them


class Inventory(Value, frozen=True, kw_only=True):
    total: Count
    reserved: Count = 0
    min_unit: Amount = 1
    max_unit: Amount = MAX_INT
    step_size: Amount = 1
    allocation_ratio: Annotated[float, Meta(ge=0, le=3.40282e38)] = 1.0

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.allocation_ratio)


class ProviderReport(Value, frozen=True, kw_only=True):
    """One provider of a tree, as its owner sees it."""

    id: Id
    name: Name
    parent: Id | None = None
    inventories: dict[ClassName, Inventory]
    traits: tuple[TraitName, ...] = ()
    aggregates: tuple[Id, ...] = ()


class InventoryMove(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What was this provider's of a class is others' from now on, with all that is held of it."""

    provider: Id
    resource_class: ClassName
    # Who stays together goes to the first of these that has room for all of it.
    to: Annotated[tuple[Id, ...], Meta(min_length=1)]
    becomes: ClassName | None = None  # the class it is there, unit for unit; None: the same


class GuestPlace(Compact, frozen=True):
    """Where a guest is now, as its owner has it: instead of what moves of its consumer, it holds this."""

    build: Id
    attempt: Amount  # where the build has gone on elsewhere, it is the clean-up of this attempt
    allocations: Allocations


class Reshaping(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of allocations by a report: where guests are, and where whoever else holds some goes."""

    moves: Annotated[tuple[InventoryMove, ...], Meta(min_length=1)]
    guests: tuple[GuestPlace, ...] = ()


class HostState(Value, frozen=True, kw_only=True):
    """What only the host knows and placement will never hold."""

    root: Id
    host: Name
    enabled: bool = True
    why_disabled: str = ""
    zone: Zone = ""
    building: Count = 0
    load: float = 0.0
    metrics: dict[str, float] = {}
    instances: Count = 0
    forced_down: bool = False  # an operator says so, whatever is heard of it
    images: tuple[str, ...] = ()  # names of those it has cached
    image_properties: dict[str, int] = {}  # NAME=VALUE of its instances' images → how many have it
    architecture: str = ""
    hypervisor: str = ""  # its type
    hypervisor_version: Count = 0
    vm_modes: tuple[str, ...] = ()
    ip: str = ""
    capabilities: dict[str, str] = {}  # what else it says of itself, for extra specs to match


class Aggregate(Value, frozen=True, kw_only=True):
    """Hosts that an operator put together, and what he says of them: zone, tenants, options of rules."""

    id: Id
    name: str = ""  # none: only a client of the Placement API has named its id
    metadata: dict[str, str] = {}
    gone: bool = False  # told once, when it is dropped


class RegisteredCell(Value, frozen=True, kw_only=True):
    """A cell as operators have it. One that nobody registered is as a new one: enabled."""

    name: Word
    enabled: bool = True  # may anything new be placed there?
    note: str = ""
    gone: bool = False  # told once, when it is dropped


GroupPolicy = Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]


class ServerGroup(Value, frozen=True, kw_only=True):
    """Instances that are to be together, or apart. What it demands is judged when a host is claimed."""

    id: Id
    name: Name
    policy: GroupPolicy
    max_per_host: Amount = 1  # anti-affinity
    project: Annotated[str, Meta(min_length=1, max_length=255)] = "00000000-0000-0000-0000-000000000000"
    members: dict[str, tuple[str, ...]] = {}  # consumer → the roots it is on
    left: dict[str, tuple[str, ...]] = {}  # clean-up of one that left → the roots its guest may still be on


# What is asked for


class Hints(Value, frozen=True, kw_only=True):
    """What else is wished of the host."""

    group: Id | None = None  # a server group it joins
    same_host: tuple[Id, ...] = ()  # beside at least one of these instances
    different_host: tuple[Id, ...] = ()  # beside none of these
    build_near_host_ip: str = ""
    cidr: str = "/24"
    query: str = ""  # JSON: [">=", "$free_ram_mb", 1024]


class Flavor(Value, frozen=True, kw_only=True):
    name: Name
    vcpus: Count = 0
    memory_mb: Count = 0
    disk_gb: Count = 0
    extra_specs: dict[str, str] = {}


class Image(Value, frozen=True, kw_only=True):
    name: Name
    properties: dict[str, str] = {}
    traits_required: tuple[TraitName, ...] = ()


InstanceName = Annotated[str, Meta(max_length=255)]
InstanceStatus = Literal[
    "building", "swapping", "active", "moving", "verifying", "shelved", "error", "deleting", "deleted"
]


class BuildSpec(Value, frozen=True, kw_only=True):
    """What an agent needs to build one instance."""

    flavor: Flavor
    image: Image | None = None
    project: Annotated[str, Meta(min_length=1, max_length=255)] = "00000000-0000-0000-0000-000000000000"
    user: Annotated[str, Meta(min_length=1, max_length=255)] = "00000000-0000-0000-0000-000000000000"
    metadata: dict[str, str] = {}
    name: InstanceName = ""  # what people call it


class ResourceGroup(Value, frozen=True, kw_only=True):
    """Resources that must come from one provider; those of the group without a suffix may spread over a tree.

    Without resources it is one provider that must be there, tied to others by `same_subtree`.
    """

    suffix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,64}" + END)] = ""
    resources: Resources = {}
    required: tuple[TraitName, ...] = ()
    forbidden: tuple[TraitName, ...] = ()
    member_of: tuple[tuple[Id, ...], ...] = ()  # every inner list must be met by one of its members
    required_any: tuple[tuple[TraitName, ...], ...] = ()  # so must these
    not_member_of: tuple[Id, ...] = ()
    in_tree: Id | None = None  # any provider of the wanted tree


# Candidates


class Candidate(Compact, frozen=True):
    """A complete allocation that would fit now, with what filters and weighers may look at."""

    root: Id
    host: str
    cell: str
    agent: str
    zone: str
    allocations: Allocations
    shapes: Shapes
    free: dict[str, int] = {}
    capacity: dict[str, int] = {}
    traits: tuple[str, ...] = ()
    mappings: dict[str, tuple[str, ...]] = {}  # group suffix → the providers that serve it
    # Of each provider in allocations, what is free of what is taken there; empty where the root is its whole
    # tree and serves all: then `free` says it.
    rooms: dict[str, dict[str, int]] = {}
    aggregates: tuple[str, ...] = ()  # of the root


class Removal(Value, frozen=True, kw_only=True):
    """How many hosts a constraint took out of the running, and how many it left."""

    constraint: str
    removed: int
    left: int
    about: str = ""  # the field of the request, where programs are to know it: cell
    code: str = ""  # what kind of constraint it is, for programs (docs/reasons.md)
    hosts: tuple[str, ...] = ()  # some of those it removed, by name


class NearMiss(Value, frozen=True, kw_only=True):
    host: str
    lacks: str
    code: str = ""


class RecordedScale(Compact, frozen=True):
    """How one weigher counted: its values run from lowest to highest of all that fit, times a multiplier."""

    weigher: str
    multiplier: float
    lowest: float
    highest: float
    clamped: bool = False  # what is below the lowest counts as that


class RecordedHost(Compact, frozen=True):
    """A host that was looked at: what each weigher read there, in the order of the scales."""

    root: str
    host: str
    values: tuple[float, ...]
    refused: str = ""  # the rule that did, and why; empty: it was admitted
    multipliers: dict[str, float] = {}  # of weighers that its aggregates count otherwise
    chosen: int = 0  # how often others had got it by the same evaluation: of equals the least comes first
    outside: bool = False  # another scheduler looks at it first: it comes after all that are not


class AlsoAsked(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asked of the host beside what is built."""

    zone: Zone = ""
    cell: str = ""
    aggregates: tuple[tuple[Id, ...], ...] = ()
    not_aggregates: tuple[Id, ...] = ()
    hints: Hints | None = None
    forced_host: str = ""
    wanted_host: str = ""
    ignore_hosts: tuple[str, ...] = ()
    preferred_traits: dict[TraitName, float] = {}


class Record(Value, frozen=True, kw_only=True):
    """What a decision was made by, so that it can be made again: the best hosts, best first."""

    flavor: int = 0  # 0: the flavor asked for; n: the nth of or_else
    seed: str = ""  # breaks ties
    near: float = 0.0  # scores no further apart than about this are equal
    subset: int = 1  # among how many of the best it was drawn
    scales: tuple[RecordedScale, ...] = ()
    hosts: tuple[RecordedHost, ...] = ()
    turned_down: tuple[str, ...] = ()  # roots that would have been better, and that placement refused
    asked: AlsoAsked | None = None  # beside what is built, to ask again; None: nothing


class Decision(Value, frozen=True, kw_only=True):
    """Why a build landed where it did, or nowhere."""

    considered: int = 0
    removals: tuple[Removal, ...] = ()
    nearest: tuple[NearMiss, ...] = ()
    scores: dict[str, float] = {}
    refused: tuple[str, ...] = ()  # choices placement turned down on the way
    code: str = ""  # nowhere: why, for programs (docs/reasons.md)
    helps: tuple[str, ...] = ()  # what would have made it fit
    notes: tuple[str, ...] = ()  # what of the request meant nothing here
    record: Record | None = None


class PlacedThere(Value, frozen=True, kw_only=True):
    """How many instances would go to a host."""

    root: Id
    host: str
    cell: str
    zone: str = ""
    instances: Amount = 1


class RankedHost(Value, frozen=True, kw_only=True):
    """A host that would do, with what each weigher gives it, and their sum as `total`."""

    root: Id
    host: str
    cell: str
    zone: str = ""
    scores: dict[str, float] = {}


class RoomLeft(Value, frozen=True, kw_only=True):
    """How many more there is room for in a cell's zone, and on how many hosts."""

    cell: str
    zone: str = ""
    hosts: Count = 0
    instances: Count = 0


# Claims


class Choice(Compact, frozen=True):
    """One way to satisfy a claim, with the shapes it was chosen under. An empty one gives everything back."""

    allocations: Allocations
    shapes: Shapes = {}


class ConsumerClaim(Value, frozen=True, kw_only=True):
    """Give this consumer the first of these choices that fits, replacing what it holds.

    `generation` fences: None says "it holds nothing yet", a number says "it holds what I last saw". Unless
    `fenced`, whatever it holds is replaced (clients of the API before 1.28). With `keep`, what it held is not
    given back but goes, in the same transaction, to the consumer of that name and of the type CLEANUP: its
    guest may still be there.
    """

    consumer: Id
    generation: Ordinal | None
    fenced: bool = True
    choices: Annotated[tuple[Choice, ...], Meta(min_length=1, max_length=64)]
    project: Annotated[str, Meta(min_length=1, max_length=255)] = "00000000-0000-0000-0000-000000000000"
    user: Annotated[str, Meta(min_length=1, max_length=255)] = "00000000-0000-0000-0000-000000000000"
    # None: keep the type it has (clients of the API before 1.38)
    type: Annotated[str, Meta(pattern=r"^[A-Z0-9_]{1,255}" + END)] | None = "INSTANCE"
    keep: Id | None = None
    client: bool = False  # a client of the API claims, for a consumer that no cell knows
    # The server group it is in from now on, whose policy is judged with the claim; None: the one it was in.
    group: Id | None = None
    # A move begins by this name, at most once: with the claim the name is retired. Whoever keeps the old
    # place then does so as a MIGRATION, and may hold nothing yet.
    begins: Id | None = None
    # Instead of any choice: all that this one holds, who then holds nothing. It was there, so neither room
    # nor its group is judged.
    take_over: Id | None = None


class Full(Tagged, frozen=True, kw_only=True):
    """Not enough room; or `limit` names the unit rule that was broken (min_unit, max_unit, step_size).

    `limit` is `inventory` when the provider has none of this class at all.
    """

    provider: str
    resource_class: str
    asked: int
    free: int
    limit: str = ""

    def __str__(self) -> str:
        if self.limit == "inventory":
            return f"{self.provider}: asked {self.asked} {self.resource_class}, it has none"
        if self.limit:
            return f"{self.provider}: {self.asked} {self.resource_class} breaks its {self.limit}"
        return f"{self.provider}: asked {self.asked} {self.resource_class}, {self.free} free"


class Moved(Tagged, frozen=True, kw_only=True):
    """Its inventory, traits, aggregates or tree changed since it was chosen: look again."""

    provider: str

    def __str__(self) -> str:
        return f"{self.provider}: changed since it was chosen"


class Gone(Tagged, frozen=True, kw_only=True):
    provider: str

    def __str__(self) -> str:
        return f"{self.provider}: no such provider any more"


class Crowded(Tagged, frozen=True, kw_only=True):
    """Its server group does not let it be there."""

    provider: str  # the root
    group: str
    policy: GroupPolicy
    members: int  # how many are there already

    def __str__(self) -> str:
        there = f"{self.members} of server group {self.group} there" if self.members else "none of it there"
        return f"{self.provider}: {self.policy}: {there}"


class NoGroup(Tagged, frozen=True, kw_only=True):
    """The server group that the claim names is none of its project: looking again will not help."""

    group: str

    def __str__(self) -> str:
        return f"server group {self.group}: there is none in this project"


class NothingHeld(Tagged, frozen=True, kw_only=True):
    """There is nothing to take over from this one: looking again will not help."""

    consumer: str

    def __str__(self) -> str:
        return f"consumer {self.consumer} holds nothing that could be taken over"


class Walled(Tagged, frozen=True, kw_only=True):
    """A cell asked for what is not its own to ask; nothing was changed, and asking again will not help."""

    why: str

    def __str__(self) -> str:
        return self.why


Refusal = Full | Moved | Gone | Crowded | NoGroup | NothingHeld | Walled


class Claimed(Tagged, frozen=True, kw_only=True):
    choice: int  # which of the choices
    generation: int
    number: int  # the change that made it so, as in placement.changed
    refused: tuple[Refusal, ...] = ()  # the better choices that did not fit, one reason each


class Held(Tagged, frozen=True, kw_only=True):
    """The consumer's generation is not the one you named: here is what it holds."""

    generation: int
    allocations: Allocations
    roots: tuple[str, ...] = ()  # of the trees that is of; a reshape may have moved it within them


class Retired(Tagged, frozen=True, kw_only=True):
    """The consumer has ended and will never hold again; `why` is how."""

    why: str
    unplaceable: bool = False  # no host was found for it: whoever asks for it again is told so again


class Refused(Tagged, frozen=True, kw_only=True):
    refusals: tuple[Refusal, ...]  # one for each choice; empty when another claim of the order failed


class Contended(Tagged, frozen=True, kw_only=True):
    """Lost the same race too often; nothing was changed. Ask again."""


ClaimResult = Claimed | Held | Retired | Refused | Contended


class Released(Tagged, frozen=True, kw_only=True):
    number: int = 0


ReleaseResult = Released | Held | Retired | Walled | Contended


# Builds


class Selection(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A host to build on with its ready claim."""

    root: Id
    host: str
    agent: Word
    choice: Choice
    # Group suffix → the providers that serve it; empty where the root serves all that is asked for by groups.
    mappings: dict[str, tuple[str, ...]] = {}


class Instance(Value, frozen=True, kw_only=True):
    """A build as a list of them shows it."""

    build: Id
    name: str = ""
    status: str
    cell: Word
    host: str  # the one it is on, or was last
    root: str
    project: str
    flavor: str
    attempt: Count = 0  # how many hosts it has been ordered on
    since: Seconds = 0.0  # of its last attempt
    reason: Cause = ""


class Attempt(Value, frozen=True, kw_only=True):
    host: str
    agent: str = ""
    outcome: Literal["built", "failed", "refused", "timed out"]
    cause: Cause = ""
    started: float = 0.0
    ended: float = 0.0


class WaitingRequest(Value, frozen=True, kw_only=True):
    """A request that waits for room."""

    request: Id
    builds: tuple[Id, ...] = ()  # some of them
    instances: int
    project: str
    flavor: str
    priority: int
    since: float
    until: float
    kind: str  # requests alike wait in one line
    position: int  # in that line
    lacks: str
    wakes: str = ""  # what would make it be looked at again


class WaitingKind(Compact, frozen=True):
    """How many of one kind wait."""

    kind: str
    flavor: str
    requests: int
    instances: int


class ProviderChange(Compact, frozen=True):
    """A provider after a commit. `reshaped` says: read its tree again; otherwise only usage moved."""

    provider: str
    root: str
    generation: int
    used: dict[str, int]
    reshaped: bool = False
    gone: bool = False
    sequence: int = -1  # reshaped: of the last report of its tree, by which its owner knows whose it was
