"""The declaration of a feature: of a folder below `features/`, which `berth` runs because it is in its list.

A feature's folder has a module `feature` with the value FEATURE. Its field `adds` names the modules by which
the feature adds something to berth: of the folder, or of a folder `with_NAME` as `with_NAME.scheduler`. Those
of `with_NAME` are loaded only if the feature NAME is in the list, too, and their parts of workers are made
last. Each of these modules has a value PART, whose type the module's name determines (MODULES). At the start
of every process an unknown name or a missing module is refused; a PART that is missing or of another type is
refused when the module is loaded.

A module that another feature defines has a name that the other feature declares in its field `defines`, and a
PART of the type that it defines (`berth.features.added`).

Further folders of a feature:

    templates    the templates of its pages
    migrations   the migrations of the database that its processes share, or a folder for each worker in whose
                 database it has tables: placement, scheduler, conductor
    commands     its commands, or a module; the declaration names the modules
    tests        its tests; `tests/support/pages` has its pages for tests of all pages: PAGES, VALUES of names
                 in their addresses, FORMS, FORM_FIELDS, PARAMETERS, IN_PATHS, STREAMS, ODD, ANSWERED, CELLS,
                 `workers()` and `fill(berth)`, which creates what the pages show; `tests/support/rest` has
                 OPERATIONS and ANSWERS for tests of all operations of the REST API
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from bus.acts import Act, Requested
from bus.decisions import ReasonTable
from bus.invalid_requests import RequestKind
from bus.parts import ConsumerPart, Part, Parts, PlacedPart, RequestPart
from bus.topics import Query, Topic
from bus.vocabulary import Message

T = TypeVar("T")
N = TypeVar("N", bound="PartNeeds", contravariant=True)
P = TypeVar("P", covariant=True)
Refuse = Callable[[str, str], None]  # the name of a setting, and why it is refused


# Each module by which a feature may add something, with the type of its PART, and what it adds.
MODULES = {
    "messages": "`MessagesPart`: its messages, topics and queries, and their rows in tables of the kernel",
    "placement": "`placement_worker.extension.ForPlacement`: its part of placement",
    "scheduler": "`scheduler_worker.extension.ForScheduler`: its part of a scheduler",
    "conductor": "`cell_conductor.extension.ForConductor`: its part of a cell's conductor",
    "agent": "`compute_sim.extension.ForAgent`: its part of simulated agents",
    "metal": "`ironic_sync.extension.ForMetal`: its part of the agents that deploy on Ironic's nodes",
    "filters": "`scheduler_worker.core.extension.RulesPart`: its filters and weighers",
    "request_reader": "`scheduler_worker.core.extension.RequestReaderPart`: reads extra specs, image"
    " properties and hints. Commands import the module, so it must not load database code",
    "http": "`berth.kit.HttpApiPart`: its operations of the Placement API over HTTP",
    "rest": "`berth.kit.RestPart`: its operations of the REST API",
    "authentication": "`berth.kit.AuthenticationPart`: its method of authentication, which the declaration"
    " names. Every command imports the module, so it must load fast",
    "processes": "`berth.kit.ProcessPart`: makes the workers of its processes",
    "agent_queues": "`berth.kit.AgentQueuesPart`: lets the agents of a cell share queues",
    "audit": "`berth.kit.AuditPart`: finds violated rules of its data in placement's database",
    "cell_audit": "`berth.kit.CellAuditPart`: reads its records about builds in a cell's database",
    "healing": "`berth.kit.HealingPart`: lets a cell record an instance, for `berth audit heal`",
    "operators": "`berth.kit.OperatorPart`: connects operators whose RabbitMQ users it has made",
    "credentials": "`berth.kit.CredentialsPart`: lists the RabbitMQ users that it has made",
    "boot_options": "`berth.kit.BootOptionsPart`: its options of build requests, and fields of the web form",
    "explaining": "`berth.kit.ExplainingPart`: explains builds for `berth why`",
    "problems": "`berth.kit.ProblemsPart`: its kinds of problems, for the list of problems",
    "pages": "`control_room.kit.PagePart`: its pages, and what it adds to pages of others",
    "bench.suite": "`bench.suite.BenchmarksPart`: its benchmarks",
}


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of groups of settings. All times are in seconds."""

    def check(self, refuse: Refuse) -> None:
        """Call `refuse` with the name of each unusable setting, and the reason."""


# The groups of pages of the control room, in the order of its navigation.
NavigationGroup = Literal["Overview", "Hosts", "Instances", "Requests", "Policy"]


class PageEntry(NamedTuple):
    """The entry of a page in the navigation of the control room."""

    name: str
    group: NavigationGroup


@dataclass(frozen=True, kw_only=True)
class FeatureProcess:
    """A worker that runs in a process of its own: `berth run NAME`. Other workers do not need its answers, so
    it stops first.

    `runs_with`: whether `berth up` runs it with these settings of the feature.
    """

    name: str
    runs_with: Callable[[Any], bool]
    has_database: bool = False
    module: str = (
        "processes"  # of the feature; in a folder `with_NAME` the process exists only if NAME is listed
    )


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A declaration of a feature: what its folder contains, which other features it needs, and what
    composition must start or register for it.
    """

    name: str  # of the folder
    says: str  # a phrase about what the feature does, for `berth reference features`
    adds: tuple[str, ...] = ()  # modules with a value PART
    defines: tuple[str, ...] = ()  # modules by which others add something to this feature
    needs: tuple[str, ...] = ()  # names of features whose modules it imports
    settings: type[SettingsGroup] | None = None
    # value of placement_auth that selects its module `authentication`; then its `clouds` are required
    authentication: str = ""
    clouds: tuple[str, ...] = ()  # settings that name an entry of clouds.yaml with a user of Keystone
    processes: tuple[FeatureProcess, ...] = ()
    # command or group of commands → module of the feature that defines it under its last word, such as
    # "host drain"; also in a group of the kernel, or of a feature that this one needs
    commands: Mapping[str, str] = field(default_factory=dict)
    exit_codes: Mapping[str, str] = field(default_factory=dict)  # command → a meaning of its exit code 1
    command_groups: Mapping[str, str] = field(default_factory=dict)  # group → description
    pages: Mapping[str, PageEntry] = field(default_factory=dict)  # address → entry of the navigation
    reasons: tuple[ReasonTable, ...] = ()  # codes of decisions and refusals
    # code of a refused claim → the change after which the request can be tried again
    wakes: Mapping[str, str] = field(default_factory=dict)
    # a module with metrics, also of a join, and the process that serves them
    meters: tuple[tuple[str, str], ...] = ()
    examples: tuple[tuple[str, Any], ...] = ()  # settings with which all of its processes run


class Offers:
    """Objects that parts of features offer to the parts of features that need them, by their types."""

    def __init__(self) -> None:
        self._objects: dict[type[Any], Any] = {}

    def add(self, *objects: object) -> None:
        """Offer objects to the features that need this one. An object of the same type as an earlier one
        replaces it.
        """
        self._objects |= {type(each): each for each in objects}

    def of(self, kind: type[T]) -> T:
        """Return the object of this type; raise LookupError if no part that was made before offers one."""
        if kind not in self._objects:
            raise LookupError(f"no feature offers {kind.__name__}: does the declaration name it in `needs`?")
        found: T = self._objects[kind]
        return found

    def every(self, kind: type[T]) -> list[T]:
        """Return all objects of this type or of a subclass, in the order in which they were offered."""
        return [found for found in self._objects.values() if isinstance(found, kind)]


@dataclass(frozen=True, kw_only=True)
class PartNeeds:
    """Base class of what a worker gives to `part`: objects that exist before the worker's own."""

    offers: Offers = field(default_factory=Offers)  # objects that the features which this one needs offer

    def of(self, kind: type[T]) -> T:
        """Return the object of this type that the part of a feature named in `needs` offers."""
        return self.offers.of(kind)


@dataclass(frozen=True)
class MakesPart(Generic[N, P]):
    """The part of a feature for a worker. Each worker derives a class from this for its own needs and parts.
    `make` gets what the worker gives, and the settings of the feature, or None if it has none.
    """

    make: Callable[[N, Any], P]


@dataclass(frozen=True, kw_only=True)
class MessagesPart:
    """The messages of a feature, in the tables of the kernel that have a row for each of them."""

    parts: Mapping[type[Parts[Any]], type[Part]] = field(default_factory=dict)  # its parts of messages
    # part of the message that a build is placed → makes the part of a request that leads to it
    asked: Mapping[type[PlacedPart], Callable[[Any], RequestPart]] = field(default_factory=dict)
    # part of a request → makes the part of the claim by which the deleted consumer of an instance is restored
    restored: Mapping[type[RequestPart], Callable[[Any], ConsumerPart | None]] = field(default_factory=dict)
    beginnings: Sequence[type[Message]] = ()  # messages that begin a trace
    acts: Sequence[Act] = ()  # acts that its messages carry out, with the roles that may do them
    requested: Mapping[type[Message], Requested] = field(default_factory=dict)
    done: Sequence[type[Any]] = ()  # results of edits that were carried out
    request_kinds: Sequence[RequestKind] = ()
    page_asks: Sequence[Query[Any, Any]] = ()  # queries of its pages
    page_publishes: Sequence[type[Message]] = ()  # messages that its pages publish
    page_events: Sequence[Topic[Any]] = ()  # topics for clients, whose messages refresh its pages
    heartbeats: Sequence[Topic[Any]] = ()  # topics with several heartbeats, `reports`, in a message
    rest_asks: Sequence[Query[Any, Any]] = ()  # queries of its part of the REST API
    rest_publishes: Sequence[type[Message]] = ()  # messages of its part of the REST API
