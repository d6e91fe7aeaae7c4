"""Finds hosts and aggregates by name; disables hosts and marks them as forced down."""

import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

from msgspec import structs

from berth.settings import BadSetting
from bus import topics
from bus.aggregates import Aggregate, FindAggregates, every_aggregate
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.host_health import (
    DISABLED,
    FORCED_DOWN,
    HELD,
    UNNAMED,
    FindHostHealth,
    HostCapabilities,
    HostHealth,
    HostStanding,
    causes_in,
    closed_for,
    every_health,
    opened_for,
    standing,
    unanswered,
)
from bus.messages import BuildRequested
from bus.names import MakeName, NameEditRequested
from bus.queries import FindWaiting, HeldHost
from bus.requests import ResourceGroup
from bus.resources import Edited, EditRequested, FindProviders, Provider, SetTraits, Stale
from bus.vocabulary import portions

A_PAGE = 500
HEALTH_SECONDS = 3.0  # time limit for a scheduler's answer
_TRIES = 8
_CAUSE = re.compile(r"[a-z0-9_]{1,64}")


class Marked(NamedTuple):
    """The state of a host after an operator disabled, enabled or forced it down."""

    host: Provider
    says: str  # its new state, or why it did not change

    @property
    def is_disabled(self) -> bool:
        return DISABLED in self.host.traits


Marking = Callable[[Bus, Provider], Awaitable[Marked]]  # marks a root


async def every_provider(bus: Bus, query: FindProviders, timeout: float = 10.0) -> AsyncIterator[Provider]:
    """Yield all providers that match the query, and read them from placement page by page."""
    ask, after, more = bus.asker(topics.PROVIDERS, timeout), "", True
    while more:
        page = (await ask(structs.replace(query, after=after, limit=A_PAGE))).providers
        for provider in page:
            yield provider
        after, more = max((provider.id for provider in page), default=""), len(page) == A_PAGE


async def providers_by_id(bus: Bus, ids: Iterable[str], timeout: float = 30.0) -> dict[str, Provider]:
    """Return the providers with the given ids, by id, with their cells, agents and traits."""
    ask = bus.asker(topics.PROVIDERS, timeout=timeout)
    found: dict[str, Provider] = {}
    for some in portions(sorted({*ids}), A_PAGE):
        answer = await ask(FindProviders(ids=some, parts=("traits", "owner")))
        found |= {provider.id: provider for provider in answer.providers}
    return found


async def reported_hosts(bus: Bus, agent: str = "") -> AsyncIterator[Provider]:
    """Yield the root providers of the hosts that this agent or, without an agent, any agent reports."""
    query = FindProviders(parts=("traits", "owner"), agents=(agent,) if agent else ())
    async for provider in every_provider(bus, query):
        if provider.parent is None and provider.agent:
            yield provider


async def host_named(bus: Bus, name: str) -> Provider:
    """Return the root provider of the host with this name or uuid; a bare-metal node has the name that Ironic
    gives it. Raise OperationRefused if there is no such host, or if several hosts have the name.
    """
    found = await hosts_named(bus, name)
    if not found:
        raise OperationRefused(f"there is no host {name!r}; `berth host list` lists them")
    return found[0]


async def hosts_named(bus: Bus, name: str) -> list[Provider]:
    """Return the root provider of the host with this name or uuid in a list, which is empty if there is no
    such host. Raise OperationRefused if several hosts have the name.
    """
    try:
        query = FindProviders(ids=(str(uuid.UUID(name)),), parts=("traits", "owner"))
    except ValueError:
        query = FindProviders(host=name, parts=("traits", "owner"))
    answer = await bus.asker(topics.PROVIDERS)(query)
    found = [provider for provider in answer.providers if provider.parent is None]
    if len(found) > 1:
        ids = " and ".join(sorted(provider.id for provider in found))
        raise OperationRefused(
            f"several hosts have the name {name!r}: give the uuid of the host, one of {ids}"
        )
    return found


async def host_id(bus: Bus, name: str) -> str:
    """Return the root of the host with this name; a uuid is returned in lower case with dashes, unchecked."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return (await host_named(bus, name)).id


async def check_host_names(bus: Bus, names: Iterable[str]) -> None:
    """Raise OperationRefused if several hosts have one of the names. Unknown names are accepted: the worker
    that receives the request refuses them.
    """
    for name in dict.fromkeys(filter(None, names)):
        await hosts_named(bus, name)


class HostStandings:
    """The states of hosts, from their traits in placement and from a scheduler's report of their health."""

    def __init__(
        self, health: dict[str, HostHealth] | None, capabilities: Iterable[HostCapabilities] = ()
    ) -> None:
        self._health = health  # root → its health; None: no scheduler answers
        self._capabilities = {each.root: each for each in capabilities}

    @classmethod
    async def ask(cls, bus: Bus, roots: Sequence[str] = (), described: Sequence[str] = ()) -> "HostStandings":
        """Return the states of hosts: query a scheduler for the health of the hosts `roots`, and for the
        hypervisors of the hosts `described`. If no scheduler answers, the health is unknown.

        Hosts are given as ids of root providers. Without `roots`, query the health of all hosts not up.
        """
        ask = bus.asker(topics.HOST_HEALTH, timeout=HEALTH_SECONDS)
        capabilities: list[HostCapabilities] = []
        try:
            for some in portions(described, A_PAGE):
                answer = await ask(FindHostHealth(roots=some, limit=1, described=True))
                capabilities += answer.capabilities
            return cls({health.root: health async for health in every_health(ask, roots)}, capabilities)
        except (Unavailable, Unroutable):
            return cls(None)

    def capabilities(self, root: Provider) -> HostCapabilities:
        """Return a host's hypervisor, driver and agent version; empty if it never sent a heartbeat."""
        return self._capabilities.get(root.id) or HostCapabilities(root=root.id)

    def of(self, root: Provider) -> HostStanding:
        health = unanswered(root) if self._health is None else self._health.get(root.id)
        return standing(root.traits, health, root.kept_traits, deleted=root.gone)


def state_of(root: Provider) -> str:
    """Return a host's state, such as `disabled` or `open`, according to the traits of its root provider."""
    if root.gone:
        return "gone"
    states = []
    if FORCED_DOWN in root.traits:
        states.append("forced down")
    if DISABLED in root.traits:
        states.append("disabled" if DISABLED in root.kept_traits else "disabled by its agent")
    if causes := causes_of(root):
        states.append(f"because of {' and '.join(causes)}")
    return ", ".join(states) or "open"


def causes_of(root: Provider) -> list[str]:
    """Return the names of the causes for which operators have disabled a host."""
    return causes_in(root.traits)


def checked_cause(given: str) -> str:
    cause = given.lower().replace("-", "_")
    if given and not _CAUSE.fullmatch(cause):
        raise BadSetting(f"--because {given!r}: a name of letters, digits and _")
    return cause


def disabling(cause: str) -> Marking:
    """Return a function that disables a host for a cause such as `drain`; "" is a cause without a name."""

    async def disable(bus: Bus, root: Provider) -> Marked:
        for name in filter(None, (cause, UNNAMED if cause or causes_of(root) else "")):
            await _make(bus, _held(name))
        return await _edited(bus, root, lambda now: closed_for(cause, now.traits, now.kept_traits))

    return disable


def enabling(cause: str) -> Marking:
    """Return a function that removes a cause ("": the one without a name) from a disabled host, and enables
    the host if no cause is left.
    """

    async def enable(bus: Bus, root: Provider) -> Marked:
        if DISABLED in root.traits and DISABLED not in root.kept_traits and not causes_of(root):
            return Marked(root, "its agent has disabled it: only that can undo it")
        if (rest := causes_of(root)) and (cause or UNNAMED) not in rest:
            word = rest[0] if len(rest) == 1 else "WORD"
            says = f"stays disabled because of {' and '.join(rest)}: `--because {word}` removes that cause"
            return Marked(root, says)
        return await _edited(bus, root, lambda now: opened_for(cause, now.traits, now.kept_traits))

    return enable


def forcing_down(down: bool) -> Marking:
    """Return a function that marks a host as forced down, or that removes the mark."""

    async def force_down(bus: Bus, root: Provider) -> Marked:
        if down:
            await _make(bus, FORCED_DOWN)
        return await _edited(
            bus, root, lambda now: {*now.traits, FORCED_DOWN} if down else {*now.traits} - {FORCED_DOWN}
        )

    return force_down


def _held(cause: str) -> str:
    return f"{HELD}{cause.upper()}"


async def _make(bus: Bus, trait: str) -> None:
    """Create a trait in placement if it does not exist yet."""
    await bus.asker(topics.EDIT_NAME)(NameEditRequested(kind="trait", edit=MakeName(name=trait)))


async def _edited(bus: Bus, root: Provider, wanted: Callable[[Provider], set[str]]) -> Marked:
    for _ in range(_TRIES):
        traits = wanted(root)
        if traits == {*root.traits}:
            return Marked(root, f"is so already ({state_of(root)})")
        edit = SetTraits(provider=root.id, traits=tuple(sorted(traits)), generation=root.generation)
        result = (await bus.asker(topics.EDIT)(EditRequested(edit=edit))).result
        root = await host_named(bus, root.id)
        if isinstance(result, Edited):
            return Marked(root, state_of(root))
        if not isinstance(result, Stale):
            raise OperationRefused(f"{root.name}: {result}")
    raise OperationRefused(f"{root.name}: other processes keep changing it; try again")


async def find_aggregates(bus: Bus, **query: Any) -> list[tuple[Aggregate, int]]:
    """Return the aggregates that match `query` (fields of FindAggregates), each with its number of hosts."""
    return [
        (aggregate, page.hosts.get(aggregate.id, 0))
        async for page in every_aggregate(bus.asker(topics.AGGREGATES), FindAggregates(**query))
        for aggregate in page.aggregates
    ]


async def hosts_inside(bus: Bus, id_: str) -> list[Provider]:
    """Return the root providers of the hosts in an aggregate."""
    query = FindProviders(like=ResourceGroup(member_of=((id_,),)), parts=("aggregates", "owner"))
    return [provider async for provider in every_provider(bus, query) if provider.parent is None]


async def aggregate_named(bus: Bus, name: str) -> Aggregate:
    """Return the aggregate with this name or uuid, or raise OperationRefused."""
    try:
        found = await find_aggregates(bus, ids=(str(uuid.UUID(name)),))
    except ValueError:
        found = await find_aggregates(bus, name=name)
    if found:
        return found[0][0]
    names = [aggregate.name for aggregate, _ in await find_aggregates(bus) if aggregate.name]
    nearest = get_close_matches(name, names, 1)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else "; `berth aggregate list` lists them"
    raise OperationRefused(f"there is no aggregate {name!r}{hint}")


async def host_names(bus: Bus, roots: Collection[str]) -> dict[str, str]:
    if not roots:
        return {}
    found = await bus.asker(topics.PROVIDERS)(FindProviders(ids=tuple(sorted(roots)), parts=("owner",)))
    return {provider.id: provider.host or provider.name for provider in found.providers}


class HostRequestOptions(Protocol):
    """The options that a feature adds to those of build requests."""

    def requested(self, request: BuildRequested) -> BuildRequested:
        """Return the request with what the options say; raise BadSetting if they contradict it."""

    async def resolved(self, bus: Bus, request: BuildRequested) -> BuildRequested:
        """Return the request with the ids of named objects; raise OperationRefused if one is unknown."""


@dataclass(frozen=True)
class ByName:
    """The aggregates of a request, each by name or by uuid, and the options of features."""

    aggregates: tuple[tuple[str, ...], ...] = ()  # the host must be in one aggregate of each tuple
    not_aggregates: tuple[str, ...] = ()
    more: tuple[HostRequestOptions, ...] = ()


async def resolved(bus: Bus, request: BuildRequested, by_name: ByName) -> BuildRequested:
    """Return the build request with the uuids of the aggregates and of the objects of features that `by_name`
    names. Raise OperationRefused if several hosts have the name of a host in the request.
    """
    await check_host_names(bus, (request.wanted_host, request.forced_host, *request.ignore_hosts))
    for options in by_name.more:
        request = await options.resolved(bus, request)
    names = dict.fromkeys((*(name for some in by_name.aggregates for name in some), *by_name.not_aggregates))
    ids = {name: await _id(bus, name) for name in names}
    return structs.replace(
        request,
        aggregates=tuple(tuple(ids[name] for name in some) for some in by_name.aggregates),
        not_aggregates=tuple(ids[name] for name in by_name.not_aggregates),
    )


async def _id(bus: Bus, name: str) -> str:
    """Return the uuid of the aggregate with this name; a uuid is returned in lower case with dashes."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return (await aggregate_named(bus, name)).id


def names_listed(option: str, given: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in given.split(","))
    if not all(names):
        raise BadSetting(f"{option}: {given!r} is not a list of names or uuids of aggregates")
    return names


async def holds_on(bus: Bus, root: str) -> Sequence[HeldHost]:
    """Return for which waiting requests a host is held; empty if no scheduler answers."""
    try:
        found = await bus.asker(topics.WAITING, timeout=HEALTH_SECONDS)(FindWaiting(on=(root,), limit=1))
    except (Unavailable, Unroutable):
        return ()
    return found.holds
