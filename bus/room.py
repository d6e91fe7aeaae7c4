"""Messages for plans of moves, which make room for builds or even out the load of hosts, and for closing
hosts while a plan is executed.
"""

from typing import Annotated, Literal
from uuid import UUID, uuid5

from msgspec import Meta, field

from bus.decisions import Decision
from bus.domains import Labels
from bus.messages import BuildRequested
from bus.queries import PlacedThere
from bus.vocabulary import (
    Cause,
    ClassName,
    Count,
    Id,
    LargeMap,
    LongList,
    Message,
    Number,
    Seconds,
    ShortList,
    Text,
    Value,
    Whole,
)

MOST_MOVES = 1000  # moves in one plan
# codes of decisions without a host that moves of instances can remedy
MOVES_MAY_HELP = frozenset({"class", "room", "group", "together", "topology", "server_group"})
Budget = Annotated[int, Meta(ge=0, le=MOST_MOVES)]


class PlannedStep(Value, frozen=True, kw_only=True):
    """One move of a plan. It begins when the moves of all lower waves have ended."""

    build: Id
    name: Text = ""
    kind: Literal["live", "migrate"]  # migrate: stopped, because its devices cannot move while it runs
    cell: Text
    source: Id
    source_host: Text
    destination: Id
    destination_host: Text
    holder: Text = ""  # the consumer that holds the source until its guest is destroyed
    wave: Count = 0
    amounts: LargeMap[Text, Whole] = field(default_factory=dict)


class PlanRoom(Message, frozen=True, kw_only=True):
    """A query for the fewest moves after which all instances of this request fit. Nothing is claimed."""

    request: BuildRequested
    budget: Budget = 10  # moves at most
    cold: bool = False  # move every instance stopped
    # the hosts that this plan has closed: only they get instances, although they are disabled
    roots: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    fixed: ShortList[Id] = ()  # instances that stay, for example because they could not be moved before
    within: Labels = field(default_factory=dict)  # level → label: only hosts of these domains are targets


class RoomPlanned(Message, frozen=True, kw_only=True):
    """The answer to PlanRoom: the moves and each instance's host after them, or why not all instances fit."""

    # empty: all instances fit after the moves; else a reason code (docs/reasons.md)
    code: Text = ""
    why: Cause = ""
    moves: LongList[PlannedStep] = ()
    targets: LongList[PlacedThere] = ()  # for the instances that fit
    hosts: Count = 0  # hosts that would fit an instance if they were empty
    decision: Decision = Decision()  # without such a host: what rejected all hosts


class HoldHosts(Message, frozen=True, kw_only=True):
    """A request to close hosts for a plan: no builds and moves go to them. Schedulers open the hosts when
    `seconds` have passed without a repeated request.
    """

    plan: Id
    roots: Annotated[tuple[Id, ...], Meta(max_length=1000)] = ()
    seconds: Seconds = 60.0  # 0: open the hosts of the plan
    renew: bool = False  # only prolong the time of hosts that this plan has closed


class HostsHeld(Message, frozen=True, kw_only=True):
    """The answer to HoldHosts. If another plan has closed some of the hosts (`taken`), or some were opened
    (`opened`), the plan of the request must stop.
    """

    taken: LongList[Text] = ()  # hosts that another plan has closed
    opened: LongList[Text] = ()  # hosts that were opened: the time had passed, or an operator enabled them


class PlanBalance(Message, frozen=True, kw_only=True):
    """A query for moves from the fullest hosts to emptier hosts. Nothing is claimed.

    The gain of a move is the larger used share (part of the capacity) of its two hosts before the move, minus
    the larger one after the move.
    """

    cell: Text = ""  # only hosts of this cell; empty: each cell by itself
    resource_class: ClassName = "VCPU"
    budget: Budget = 10
    gain: Number = 0.1  # of each move at least
    above: Number = 0.0  # only hosts with a larger used share become emptier
    cold: bool = False
    fixed: ShortList[Id] = ()


class BalanceMove(Value, frozen=True, kw_only=True):
    """A single move, or an exchange of two instances by two moves: if the second move fails, the first move
    is undone.
    """

    steps: Annotated[tuple[PlannedStep, ...], Meta(min_length=1, max_length=2)]
    gain: Number


class BalancePlanned(Message, frozen=True, kw_only=True):
    """The answer to PlanBalance: the moves in their sequence, and the spread of each cell before and after.

    The spread is the standard deviation of the used shares of the hosts' capacity, between 0 and 0.5.
    """

    moves: LongList[BalanceMove] = ()
    before: LargeMap[Text, Number] = field(default_factory=dict)
    after: LargeMap[Text, Number] = field(default_factory=dict)


class GuardExchange(Message, frozen=True, kw_only=True):
    """A request, before an exchange of two instances, to undo the first of its two moves if the client stops
    before it requests the second. The ids of the moves follow from `exchange`.
    """

    exchange: Id
    steps: Annotated[tuple[PlannedStep, ...], Meta(min_length=2, max_length=2)]
    # until the client has requested the first move, and from the end of the first move to the second request
    seconds: Seconds = 120.0

    def move(self, part: "ExchangePart") -> Id:
        return str(uuid5(UUID(self.exchange), part))


ExchangePart = Literal["first", "second", "undo"]


class ExchangeGuarded(Message, frozen=True, kw_only=True):
    """The answer to GuardExchange: the exchange is stored."""


class SwitchBalancing(Message, frozen=True, kw_only=True):
    """A request to stop all rebalancing (`stop` is True) or to permit it again (False). The answer has the
    state of this switch; a request with neither `stop` nor `controller` is only a query for it.

    A controller of rebalancing sends its id (`controller`) repeatedly, so that no second controller runs.
    """

    stop: bool | None = None
    controller: Text = ""
    seconds: Seconds = 60.0  # until another controller may run, without a repeated request; 0: immediately
    renew: bool = False  # only prolong the time of the controller that runs

    @property
    def begins(self) -> bool:
        """Return True for the first request of a controller of rebalancing; False for any other request."""
        return bool(self.controller) and not self.renew


class BalancingSwitched(Message, frozen=True, kw_only=True):
    stopped: bool
    since: Seconds = 0.0  # when it was stopped
    taken: bool = False  # another controller runs
    controller_until: Seconds = 0.0  # when the lease of the controller ends that ran last; 0: none
    # first moves of interrupted exchanges, which are undone as soon as rebalancing is permitted
    half_done: ShortList[PlannedStep] = ()
