"""The health of hosts, which a scheduler derives from heartbeats, and the state of hosts (up, down, disabled,
...), which results from the health and from the traits that operators and agents set.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from bus.protocol import Ask
from bus.resources import Provider
from bus.vocabulary import (
    Cause,
    Count,
    Id,
    LargeMap,
    LongList,
    Message,
    Number,
    Properties,
    ShortList,
    SmallMap,
    Text,
    Value,
    Whole,
)

DISABLED = "COMPUTE_STATUS_DISABLED"  # Nova also sets this trait on a disabled host
FORCED_DOWN = "CUSTOM_BERTH_FORCED_DOWN"  # set by an operator: the host counts as down despite heartbeats
CLOSED = frozenset({DISABLED, FORCED_DOWN})
HELD = "CUSTOM_BERTH_HELD_"  # prefix of a trait for each cause of being disabled
NO_HEARTBEAT = "no heartbeat from its agent"  # begin of `HostHealth.why` if the agent is silent
UNNAMED = "operator"  # the cause if the operator gave no reason
DRAIN = f"{HELD}DRAIN"  # the cause while a host is drained


def causes_in(traits: Iterable[str]) -> list[str]:
    """Return why operators disabled a host: the causes in the names of its traits, sorted."""
    return sorted(trait.removeprefix(HELD).lower() for trait in traits if trait.startswith(HELD))


def why_disabled(traits: Iterable[str]) -> str:
    """Return a text with the causes that operators gave when they disabled a host with the given traits, or
    only `disabled` if there is no cause.
    """
    causes = causes_in(traits)
    if not causes:
        return "disabled"
    named = ", ".join(cause for cause in causes if cause != UNNAMED)
    return f"disabled by an operator: {named}" if named else "disabled by an operator"


def closed_for(cause: str, traits: Iterable[str], kept_traits: Collection[str]) -> set[str]:
    """Return a root provider's traits, after its host was disabled for one more cause ("": a cause without a
    name). `kept_traits` are the traits that operators, not agents, have set.
    """
    known, after = causes_in(traits), {*traits, DISABLED}
    if cause or known:
        after.add(f"{HELD}{(cause or UNNAMED).upper()}")
    if cause and not known and DISABLED in kept_traits:
        after.add(f"{HELD}{UNNAMED.upper()}")  # keep the earlier disabling, which had no cause
    return after


def opened_for(cause: str, traits: Iterable[str], kept_traits: Collection[str]) -> set[str]:
    """Return a root provider's traits without this cause of being disabled ("": a cause without a name). If
    no cause is left, a host that operators disabled is enabled; `kept_traits` are the traits set by
    operators.
    """
    before = {*traits}
    after = before - {f"{HELD}{(cause or UNNAMED).upper()}"}
    rest = any(trait.startswith(HELD) for trait in after)
    if not rest and (len(after) < len(before) or not cause) and DISABLED in kept_traits:
        after.discard(DISABLED)
    return after


Availability = Literal["up", "down", "unknown"]
Condition = Literal["up", "down", "draining", "disabled", "unknown", "deleted"]


class HostHealth(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The health of one host from its heartbeats. Operators' settings are in the root provider's traits."""

    root: Id
    host: Text
    cell: Text
    agent: Text
    availability: Availability = "up"  # unknown: no heartbeat since the scheduler started
    since: Number = 0.0  # if the host is down: time of its last heartbeat; 0: unknown
    why: Cause = ""  # why the host is not up
    enabled: bool = True  # from the last heartbeat, like the fields below
    why_disabled: Cause = ""
    forced_down: bool = False

    @property
    def unknown(self) -> bool:
        """Return whether it is not known if the host can build, for example because no heartbeat was received
        yet.
        """
        return self.availability == "unknown"

    @property
    def recorded(self) -> bool:
        """Return whether a scheduler must store this health, so that it avoids the host after a restart."""
        return self.availability == "down" or not self.enabled or self.forced_down


class HostCapabilities(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The hypervisor, hypervisor driver, agent version and instances of one host, from its last heartbeat."""

    root: Id
    hypervisor: Text = ""
    hypervisor_version: Count = 0
    architecture: Text = ""
    driver: Text = ""
    agent_version: Text = ""
    moves: ShortList[Text] = ()
    capabilities: Properties = field(default_factory=dict)
    instances: Count = 0
    heard: Number = 0.0  # time of the last heartbeat; 0: none since the scheduler started

    @property
    def version(self) -> str:
        """Return the version of the hypervisor as text (8.2.0 for 8002000), empty if it is unknown."""
        number = self.hypervisor_version
        return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}" if number else ""

    @property
    def summary(self) -> str:
        """Return the host's hypervisor, hypervisor driver and agent version as one line; empty if all are
        unknown."""
        parts = (
            " ".join(filter(None, (self.hypervisor, self.version, self.architecture))),
            f"driver {self.driver}" * bool(self.driver),
            f"agent {self.agent_version}" * bool(self.agent_version),
            f"moves: {', '.join(self.moves) or 'none'}" * bool(self.driver),
        )
        return "; ".join(filter(None, parts))


class FindHostHealth(Message, frozen=True, kw_only=True):
    """A query for hosts that are down, unknown, or disabled by agents. All hosts not in the answer are up."""

    roots: ShortList[Id] = ()  # only hosts with these roots; empty: all hosts
    after: Text = ""  # only roots after this one, sorted
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    counted: bool = False  # also return the number of hosts in each state
    described: bool = False  # also return the capabilities of `roots`


class HostHealthFound(Message, frozen=True, kw_only=True):
    """A page of hosts with their health, and counts of all hosts by cell and state."""

    hosts: LongList[HostHealth]
    more: bool = False
    counts: LargeMap[Text, SmallMap[Text, Whole]] = field(default_factory=dict)  # cell → state → hosts
    capabilities: LongList[HostCapabilities] = ()


class HostStanding(Value, frozen=True, kw_only=True):
    """The state of a host, and why it is not up."""

    state: Condition
    why: str = ""
    since: float = 0.0  # if the host is down: time of its last heartbeat; 0: unknown

    def __str__(self) -> str:
        if self.why.startswith(self.state):  # such as "disabled by …"
            return self.why
        why = f": {self.why}" if self.why else ""
        return f"{self.state}{_since(self.since)}{why}"


def standing(
    traits: Collection[str],
    health: HostHealth | None,
    kept_traits: Collection[str] | None = None,
    *,
    deleted: bool = False,
) -> HostStanding:
    """Return the state of a host, with reasons, from the traits of its root provider and its health.

    Without `health`, no heartbeat is missing: schedulers report only hosts that are not up. `kept_traits` are
    the traits that operators, not agents, have set (None: unknown). `deleted`: the agent has deleted the
    host.
    """
    if deleted:
        return HostStanding(state="deleted", why="its owner reports it as deleted")
    state = condition(traits, health)
    down = health is not None and health.availability == "down"
    forced = FORCED_DOWN in traits or (health is not None and health.forced_down)
    why = [health.why] if health is not None and down else []
    why += closed_by(
        traits, health is None or health.enabled, "" if health is None else health.why_disabled, kept_traits
    )
    if forced:
        why.insert(0, FORCED)
    if health is not None and state == "unknown":
        why = [health.why or "no heartbeat so far"]
    return HostStanding(state=state, why=", ".join(why), since=health.since if health and down else 0.0)


def condition(traits: Collection[str], health: HostHealth | None) -> Condition:
    """Return the state of a host (up, down, disabled, ...) without the reasons."""
    if FORCED_DOWN in traits or (health and (health.availability == "down" or health.forced_down)):
        return "down"
    if DRAIN in traits:
        return "draining"
    if DISABLED in traits or (health is not None and not health.enabled):
        return "disabled"
    return "unknown" if health is not None and health.unknown else "up"


def not_up(states: Mapping[str, int]) -> str:
    """Return how many hosts are in each state other than up, as text: `1 down, 2 disabled`."""
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "up" and count)


def unanswered(root: Provider) -> HostHealth:
    """Return the health to assume for a host while no scheduler answers: unknown."""
    return HostHealth(
        root=root.id,
        host=root.host,
        cell=root.cell,
        agent=root.agent,
        availability="unknown",
        why="no scheduler answers",
    )


async def every_health(
    ask: Ask[FindHostHealth, HostHealthFound], roots: Sequence[Id] = ()
) -> AsyncIterator[HostHealth]:
    """Query a scheduler page by page; yield the health of all hosts that are not up, or with `roots`, only of
    those with one of these roots.
    """
    after, more = "", True
    while more:
        answer = await ask(FindHostHealth(roots=tuple(roots), after=after))
        for health in answer.hosts:
            yield health
            after = max(after, health.root)
        more = answer.more


FORCED = "forced down by an operator"


def closed_by(
    traits: Collection[str], enabled: bool, why_disabled: str, kept_traits: Collection[str] | None = None
) -> list[str]:
    """Return a sentence for each party that disabled a host (operator, agent), with the causes; [] if the
    host is enabled. The agent reports `enabled` and `why_disabled`. `kept_traits` are the traits that
    operators have set (None: unknown).
    """
    causes = causes_in(traits)
    marked = DISABLED in traits
    by_operator = causes or (marked and (enabled if kept_traits is None else DISABLED in kept_traits))
    by_agent = not enabled or (marked and kept_traits is not None and DISABLED not in kept_traits)
    reasons = []
    if by_operator:
        reasons.append(f"disabled by an operator{_because(cause for cause in causes if cause != UNNAMED)}")
    if by_agent:
        reasons.append(f"disabled by its agent{_because(filter(None, [why_disabled]))}")
    return reasons


def marked(
    traits: Collection[str], kept_traits: Collection[str] | None = None, *, deleted: bool = False
) -> list[str]:
    """Return why a host gets no new instances according to its traits: deleted, forced down or disabled."""
    return [
        *(["deleted: its owner reports so"] if deleted else []),
        *([FORCED] if FORCED_DOWN in traits else []),
        *closed_by(traits, True, "", kept_traits),
    ]


def down_sentence(health: HostHealth) -> str:
    """Return a sentence with the reason why a host is down and the time of its last heartbeat."""
    return f"down{_since(health.since)}: {health.why}"


def _since(moment: float) -> str:
    return f" since {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else ""


def _because(causes: Iterable[str]) -> str:
    listed = ", ".join(causes)
    return f": {listed}" if listed else ""
