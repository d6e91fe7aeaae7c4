"""Maintenance windows, automatic evacuations of dead hosts, and messages that query and edit them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from bus.acts import Act, Requested, describe, sent
from bus.domains import LevelOrNone
from bus.feature import MessagesPart
from bus.topics import ANYONE, Query
from bus.undo import NotUndoable, Past, UndoRule
from bus.vocabulary import (
    Amount,
    Cause,
    Count,
    Id,
    LongList,
    Message,
    Seconds,
    ShortList,
    Tagged,
    Text,
    Value,
    Whole,
)
from features.moves.messages import MoveOfPlan, SupposedDestination

MOST_HOSTS = 1000  # in one window

Roots = Annotated[tuple[Id, ...], Meta(min_length=1, max_length=MOST_HOSTS)]
# after the window: ended (opened), kept (left closed as requested); opened: by an operator before the end
HostPhase = Literal["planned", "closing", "draining", "empty", "ended", "kept", "opened"]
# held: the rate limit delays it; unfenced: the fencing hook failed; undone: stopped, such as by an operator
EvacuationState = Literal[
    "missing", "held", "fencing", "unfenced", "fenced", "evacuating", "done", "returned", "undone"
]


class MaintenanceWindow(Value, frozen=True, kw_only=True):
    """A time in which hosts are to be without instances, and how the hosts are drained before this time."""

    id: Id
    roots: Roots
    begins: Seconds  # from this time the hosts must be without instances; seconds since 1970
    ends: Seconds  # at this time the hosts are opened
    # maximum number of hosts of one domain that are closed or down at the same time; 0: no limit
    budget: Whole = 0
    level: LevelOrNone = "rack"  # the level of the domains to which `budget` applies
    moves: Amount = 4  # maximum number of moves at the same time
    cold: bool = False  # stop instances before they move
    keep_closed: bool = False  # do not open the hosts at the end
    reason: Text = ""


class WindowHost(Value, frozen=True, kw_only=True):
    """The state of one host in a maintenance window."""

    root: Id
    host: Text
    phase: HostPhase = "planned"
    since: Seconds = 0.0  # when the phase began
    instances: Whole = 0  # number of instances at the last check
    # the host is not empty at the begin of the window, or will not be; or an instance would find no host now
    late: bool = False
    note: Cause = ""  # why the host is late, or which instances cannot be moved


class WindowState(Value, frozen=True, kw_only=True):
    """A maintenance window with the state of each of its hosts."""

    window: MaintenanceWindow
    hosts: LongList[WindowHost] = ()
    drain_begins: Seconds = 0.0  # estimate of the latest time at which the first drains begin
    empty_at: Seconds = 0.0  # estimate of the time when the first hosts are empty; 0: not estimated yet
    measured: Count = 0  # number of earlier moves whose durations the estimates use
    ended: Seconds = 0.0  # 0: not over
    cancelled: bool = False

    @property
    def progress(self) -> Literal["cancelled", "over", "late", "in time", "not estimated"]:
        """Return whether the window is over, or whether its hosts will be empty in time."""
        if self.cancelled or self.ended:
            return "cancelled" if self.cancelled else "over"
        if any(host.late for host in self.hosts):
            return "late"
        return "in time" if self.drain_begins else "not estimated"


class WindowPlan(Value, frozen=True, kw_only=True):
    """A preview of a maintenance window that is not stored: how its hosts would be drained now."""

    hosts: LongList[WindowHost] = ()  # `closing`: drained first; `planned`: when the budget allows it
    drain_seconds: Seconds = 0.0  # estimated duration of the moves from the hosts that are drained first
    drain_begins: Seconds = 0.0  # latest time at which these drains must begin; it may be past
    empty_at: Seconds = 0.0  # estimate of the time when these hosts are empty; 0: they have no instance
    measured: Count = 0  # number of earlier moves whose durations the estimates use
    instances: LongList[SupposedDestination] = ()  # where each active instance would move now
    not_evaluated: Count = 0  # number of hosts, after the first ones, whose instances are not evaluated
    refused: Cause = ""  # why the window cannot be added


class HostEvacuation(Value, frozen=True, kw_only=True):
    """The automatic evacuation of one host after its heartbeats stopped."""

    id: Id
    root: Id
    host: Text
    cell: Text
    missing_since: Seconds
    state: EvacuationState = "missing"
    at: Seconds = 0.0  # time of the last change of the state
    released: bool = False  # an operator has exempted it from the rate limit
    tries: Count = 0  # number of calls of the fencing hook
    fenced: Seconds = 0.0  # when the fencing hook reported that the host is off; 0: not yet
    why: Cause = ""

    @property
    def is_over(self) -> bool:
        """Return whether nothing more happens: done, undone, or the host has returned."""
        return self.state in ("done", "returned", "undone")


class MaintenanceEvent(Value, frozen=True, kw_only=True):
    """A recorded decision about a maintenance window or an evacuation; `subject` is its id."""

    subject: Id
    at: Seconds
    event: Text
    detail: Cause = ""


class FindMaintenance(Message, frozen=True, kw_only=True):
    """A query for maintenance windows and automatic evacuations that are not over; with `ended`, for all.

    `plan` is a window to preview: with it, the query stores nothing, and only returns its `WindowPlan`.
    """

    ended: bool = False  # also windows and evacuations that are over
    subject: Text = ""  # first characters of an id: only this window or evacuation, with its events and moves
    # only moves of this instance, with their windows and evacuations, and all evacuations that are not over
    build: Text = ""
    plan: MaintenanceWindow | None = None
    after: Text = ""  # `last` of the previous page; `every_maintenance` reads all pages


class MaintenanceFound(Message, frozen=True, kw_only=True):
    """The answer to FindMaintenance. `evacuates`: whether dead hosts are evacuated automatically."""

    windows: LongList[WindowState] = ()
    evacuations: LongList[HostEvacuation] = ()
    events: LongList[MaintenanceEvent] = ()
    moves: LongList[MoveOfPlan] = ()
    evacuates: bool = False
    planned: WindowPlan | None = None
    last: Text = ""  # `after` of the next page; empty: this is the last page


async def every_maintenance(
    find: Callable[[FindMaintenance], Awaitable[MaintenanceFound]], query: FindMaintenance
) -> MaintenanceFound:
    """Return the windows and evacuations of all pages. `find` sends the query for one page."""
    found = page = await find(query)
    while page.last:
        page = await find(structs.replace(query, after=page.last))
        found = structs.replace(
            page,
            windows=(*found.windows, *page.windows),
            evacuations=(*found.evacuations, *page.evacuations),
            events=(*found.events, *page.events),
            moves=(*found.moves, *page.moves),
        )
    return found


class AddWindow(Tagged, frozen=True, kw_only=True):
    """An edit that stores a maintenance window; a repeated edit is no error."""

    window: MaintenanceWindow


class ChangeWindow(Tagged, frozen=True, kw_only=True):
    """An edit that replaces the times, limits and note of a maintenance window that is not over. Its hosts
    cannot be changed. Hosts that are closed already stay closed, also if the window begins later.
    """

    window: MaintenanceWindow


class CancelWindow(Tagged, frozen=True, kw_only=True):
    """An edit that ends a maintenance window: no further move begins, and its hosts are opened to new
    instances unless the window was made with `keep_closed`.
    """

    window: Id


class FinishHosts(Tagged, frozen=True, kw_only=True):
    """An edit that ends the maintenance of the given hosts before the window ends: they are opened."""

    roots: Roots


class ReleaseEvacuations(Tagged, frozen=True, kw_only=True):
    """An edit that releases evacuations which the rate limit holds; each host is still fenced first."""

    roots: ShortList[Id] = ()
    cell: Text = ""  # release all held evacuations of this cell


MaintenanceEdit = AddWindow | ChangeWindow | CancelWindow | FinishHosts | ReleaseEvacuations


class MaintenanceEditRequested(Message, frozen=True, kw_only=True):
    """A request to add, change or end a maintenance window, or to release evacuations."""

    edit: MaintenanceEdit


class MaintenanceEdited(Message, frozen=True, kw_only=True):
    """The answer to MaintenanceEditRequested: what the edit changed, or why it was refused."""

    changed: Whole = 0  # number of changed windows, hosts or evacuations
    refused: Cause = ""


MAINTENANCE = Query(
    "scheduler.maintenance",
    FindMaintenance,
    MaintenanceFound,
    "maintenance windows, and automatic evacuations of dead hosts",
    ANYONE,
    "scheduler",
)
EDIT_MAINTENANCE = Query(
    "scheduler.edit_maintenance",
    MaintenanceEditRequested,
    MaintenanceEdited,
    "add or end a window, or release evacuations",
    ANYONE,
    "scheduler",
)


# The acts on maintenance windows and held evacuations.


def _window_state(message: MaintenanceEditRequested) -> Any:
    if not isinstance(message.edit, AddWindow | ChangeWindow | CancelWindow):
        return None
    return MAINTENANCE, FindMaintenance(subject=describe(message).id, ended=True)


def _reversed(asked: MaintenanceEditRequested, past: Past) -> Sequence[Message]:
    match asked.edit:
        case AddWindow(window=window):
            return (MaintenanceEditRequested(edit=CancelWindow(window=window.id)),)
        case _:
            raise NotUndoable("`berth host maintenance set` changes a window, `create` makes another one")


PART = MessagesPart(
    acts=(Act("maintain", "operator", "maintenance windows, and held evacuations", sent(EDIT_MAINTENANCE)),),
    requested={
        MaintenanceEditRequested: Requested(
            state=_window_state,
            targets=("roots", "window", "cell"),
            undo=UndoRule(EDIT_MAINTENANCE, _reversed),
        )
    },
    page_asks=(MAINTENANCE,),
)
