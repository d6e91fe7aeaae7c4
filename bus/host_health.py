"""The health of hosts by heartbeats, as a scheduler judges it, and the state that follows with its traits."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from bus.host_marks import DISABLED, DRAIN, FORCED_DOWN, HELD, UNNAMED
from bus.vocabulary import (
    Cause,
    Id,
    LargeMap,
    LongList,
    Message,
    Number,
    ShortList,
    SmallMap,
    Text,
    Value,
    Whole,
)

Availability = Literal["up", "down", "unknown"]
Condition = Literal["up", "down", "draining", "disabled", "unknown", "deleted"]


class HostHealth(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one host by its heartbeats. What operators set is in the traits of its root provider."""

    root: Id
    host: Text
    cell: Text
    agent: Text
    availability: Availability = "up"  # unknown: no heartbeat since the scheduler started
    since: Number = 0.0  # of a host that is down: its last heartbeat; 0: no heartbeat is on record
    why: Cause = ""  # it is not up
    enabled: bool = True  # as the last heartbeat says, like the rest
    why_disabled: Cause = ""
    forced_down: bool = False

    @property
    def unknown(self) -> bool:
        return self.availability == "unknown"

    @property
    def recorded(self) -> bool:
        """Return whether the state must be stored: after a restart no build may go to this host."""
        return self.availability == "down" or not self.enabled or self.forced_down


class FindHostHealth(Message, frozen=True, kw_only=True):
    """Hosts that are down, unknown, or closed by their agents. Other hosts in placement are up."""

    roots: ShortList[Id] = ()  # empty: all of them
    after: Text = ""  # only roots after this one, in order
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    counted: bool = False  # the number of hosts in each state, too


class HostHealthFound(Message, frozen=True, kw_only=True):
    hosts: LongList[HostHealth]
    more: bool = False
    counts: LargeMap[Text, SmallMap[Text, Whole]] = field(default_factory=dict)  # cell → state → hosts


class HostStanding(Value, frozen=True, kw_only=True):
    """The state of a host, and why it is not up."""

    state: Condition
    why: str = ""
    since: float = 0.0  # of a host that is down: its last heartbeat, if one is on record

    def __str__(self) -> str:
        if self.why.startswith(self.state):  # disabled by …
            return self.why
        why = f": {self.why}" if self.why else ""
        return f"{self.state}{_since(self.since)}{why}"


def standing(
    traits: Collection[str],
    health: HostHealth | None,
    kept: Collection[str] | None = None,
    *,
    deleted: bool = False,
) -> HostStanding:
    """Decide the state of a host by the traits of its root and by its health.

    `health` is None if a scheduler has nothing to report of the host: it is up. `kept` are the traits that no
    agent has reported, if they are known.
    """
    if deleted:
        return HostStanding(state="deleted", why="its owner reports it as deleted")
    down = health is not None and health.availability == "down"
    forced = FORCED_DOWN in traits or (health is not None and health.forced_down)
    why = [health.why] if health is not None and down else []
    why += closed_by(
        traits, health is None or health.enabled, "" if health is None else health.why_disabled, kept
    )
    if forced:
        why.insert(0, FORCED)
    state: Condition = "up"
    if down or forced:
        state = "down"
    elif DRAIN in traits:
        state = "draining"
    elif DISABLED in traits or (health is not None and not health.enabled):
        state = "disabled"
    elif health is not None and health.unknown:
        state, why = "unknown", [health.why or "no heartbeat so far"]
    return HostStanding(
        state=state, why=", ".join(why), since=health.since if health is not None and down else 0.0
    )


FORCED = "forced down by an operator"


def closed_by(
    traits: Collection[str], enabled: bool, why_disabled: str, kept: Collection[str] | None = None
) -> list[str]:
    """Return who disabled a host, and the causes; empty if it is enabled."""
    causes = sorted(trait.removeprefix(HELD).lower() for trait in traits if trait.startswith(HELD))
    marked = DISABLED in traits
    by_operator = causes or (marked and (enabled if kept is None else DISABLED in kept))
    by_agent = not enabled or (marked and kept is not None and DISABLED not in kept)
    return [
        *(
            [f"disabled by an operator{_because(one for one in causes if one != UNNAMED)}"]
            if by_operator
            else []
        ),
        *([f"disabled by its agent{_because(filter(None, [why_disabled]))}"] if by_agent else []),
    ]


def marked(
    traits: Collection[str], kept: Collection[str] | None = None, *, deleted: bool = False
) -> list[str]:
    """Return the reason why the traits of a root keep new instances away; empty if they do not."""
    return [
        *(["deleted: its owner reports so"] if deleted else []),
        *([FORCED] if FORCED_DOWN in traits else []),
        *closed_by(traits, True, "", kept),
    ]


def down_sentence(health: HostHealth) -> str:
    """Return why a host is down, with the time of its last heartbeat."""
    return f"down{_since(health.since)}: {health.why}"


def _since(moment: float) -> str:
    return f" since {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else ""


def _because(causes: Iterable[str]) -> str:
    words = ", ".join(causes)
    return f": {words}" if words else ""
