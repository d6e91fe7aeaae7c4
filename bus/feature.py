"""The declaration of a feature: of a folder below `features/`, which `berth` runs because it is in its list.

A feature's folder has a module `feature` with the value FEATURE. Other modules and folders have meanings by
their names, and each may be missing. A folder `with_NAME` may have the same modules (except `feature`): they
are loaded only if the feature NAME is in the list, too, and their parts of workers are made last:

    messages     its messages, topics and queries. PARTS has its parts of messages of the kernel
                 (`bus.parts`). Messages of the types BEGINNINGS begin a trace. PAGE_ASKS are the queries of
                 its pages, PAGE_PUBLISHES the types of messages that they publish, PAGE_EVENTS the topics for
                 clients with messages after which they refresh; HEARTBEATS are topics with several
                 heartbeats, `reports`, in a message. ACTS, REQUESTED and DONE are its rows of the
                 table of acts (`bus.acts`), REQUEST_KINDS its kinds of requests (`bus.invalid_requests`)
    placement    `part(needs, settings)` returns its part of placement; `settings` are those of the feature,
                 or None. The modules scheduler, conductor, agent (simulated agents) and metal (agents that
                 deploy on Ironic's nodes) are alike
    authentication  its method of authentication, if the declaration names one. `tokens(settings, clock)`
                 returns a `placement_worker.http.extension.TokenChecker`, RULES replace default rules of the
                 policy, and `check(settings, refuse)` checks its settings. `sign_in(rules, settings, tokens,
                 clock, visitor_of, tasks)` returns the access rules of the control room, `finding(settings,
                 clock)` is its part of `berth doctor`, and NOTE is printed by `berth credentials`. Every
                 command imports the module, so it must load fast
    filters      FILTERS and WEIGHERS are its filters and weighers, each a tuple of
                 `scheduler_worker.core.extension.MoreRules`. `options(settings)` returns their options that
                 follow from its settings; it may be missing
    request_reader  `reader(settings)` returns a `scheduler_worker.core.extension.RequestReader` for extra
                 specs, image properties and hints. `settings` is None in a client, which does not know them.
                 Commands import the module, so it must not load database code
    http         HTTP is its part of the Placement API over HTTP, and DESCRIPTION describes its operations
                 (`berth.kit.HttpDescription`)
    rest         REST is its part of the REST API; REST_ASKS and REST_PUBLISHES of the module `messages` are
                 the queries and the types of messages that it sends
    audit        `breaches(tx)` returns a sentence for each violated rule of its data in placement's database
    healing      `record(bus, recording, reply_to, seconds)` lets a cell record an instance for `berth heal`;
                 it returns why the cell does not, or ""
    agent_queues  `gateway(cell, bus, removed)` returns the worker that reads the queues which the agents of a
                 cell share, and `sharing(agent, bus)` an agent's worker without queues of its own
    processes    `make(process, settings, bus, store)` returns a worker of a process that the feature
                 declares, unless the process names another module; `check(settings, refuse)` checks its
                 settings
    commands     its commands, as the Typer `commands`; the declaration names this and further modules
    operators    `bus(settings, transport)` returns the connection of an operator whose RabbitMQ user the
                 feature has made, or None for other users
    credentials  `listed(bus, settings)` returns the RabbitMQ users that it has made, for `berth credentials`
    boot_options OPTIONS is a dataclass of options that it adds to those of build requests
                 (`berth.kit.HostRequestOptions`); FORM_FIELDS are the fields with these
                 names in the web form for build requests
    explaining   `reasons(bus, id, builds, cells)` returns explanations of a build for `berth why`;
                 `decide_now(cli, bus, known)` answers its option --now and returns the exit code, or None if
                 the recorded decision is of another feature. Each may be missing
    pages        `make(context, renderer)` returns its pages, and what it adds to pages of others
                 (`control_room.kit.AddedPages`)
    templates    the templates of its pages
    migrations   the migrations of the database that its processes share, or a folder for each worker in whose
                 database it has tables: placement, scheduler, conductor
    what_if_part  and other names that a feature defines, such as dry_runs, added_to_plans and nova_bridge:
                 PART is what a feature that needs the other one, or a join, adds to its commands, answers or
                 workers. The other feature defines the type of PART (`berth.features.added`)
    bench.suite  its benchmarks, in the dictionary SUITE
    tests        its tests; `tests/support/pages` has its pages for tests of all pages: PAGES, VALUES of names
                 in their addresses, FORMS, FORM_FIELDS, PARAMETERS, IN_PATHS, STREAMS, ODD, ANSWERED, CELLS,
                 `workers()` and `fill(berth)`, which creates what the pages show; `tests/support/rest` has
                 OPERATIONS and ANSWERS for tests of all operations of the REST API
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from bus.decisions import ReasonTable

T = TypeVar("T")
Refuse = Callable[[str, str], None]


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of groups of settings. All times are in seconds."""

    def check(self, refuse: Refuse) -> None:
        """Call `refuse` with the name of each unusable setting, and the reason."""


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
    name: str  # of the folder
    says: str
    needs: tuple[str, ...] = ()  # names of features whose modules it imports
    settings: type[SettingsGroup] | None = None
    # value of placement_auth that selects its module `authentication`; then its `clouds` are required
    authentication: str = ""
    clouds: tuple[str, ...] = ()  # settings that name an entry of clouds.yaml with a user of Keystone
    processes: tuple[FeatureProcess, ...] = ()
    # panel of `berth --help` → command or group of commands → module of the feature that defines it;
    # "GROUP NAME" is a command that the feature adds to a group of the kernel, or a join to its feature's
    commands: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    exit_codes: Mapping[str, str] = field(default_factory=dict)  # command → a meaning of its exit code 1
    command_groups: Mapping[str, str] = field(default_factory=dict)  # group → description
    pages: Mapping[str, str] = field(default_factory=dict)  # address → name in the navigation
    reasons: tuple[ReasonTable, ...] = ()  # codes of decisions and refusals
    # code of a refused claim → the change that lets a waiting request be tried again
    wakes: Mapping[str, str] = field(default_factory=dict)
    # a module with metrics, also of a join, and the process that serves them
    meters: tuple[tuple[str, str], ...] = ()
    examples: tuple[tuple[str, Any], ...] = ()  # settings with which all of its processes run


class Offers:
    """Objects that parts of features offer to the parts of features that need them, by their types."""

    def __init__(self) -> None:
        self._objects: dict[type[Any], Any] = {}

    def add(self, *objects: object) -> None:
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

    offers: Offers = field(default_factory=Offers)

    def of(self, kind: type[T]) -> T:
        """Return the object of this type that the part of a feature named in `needs` offers."""
        return self.offers.of(kind)
