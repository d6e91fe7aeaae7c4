"""Parts of messages about waiting for capacity, and messages that edit the weights of projects."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from bus.acts import Act, Requested, sent
from bus.feature import MessagesPart
from bus.messages import BuildCancelRequested
from bus.parts import PlacedPart, PlacedParts, RequestPart, RequestParts, WaitTimes
from bus.topics import ANYONE, Query
from bus.vocabulary import Message, Seconds, Tagged, Wait, seconds_of

CRASHED = "crashed"  # reason code

Priority = Annotated[int, Meta(ge=0, le=9)]


class WaitPart(RequestPart, frozen=True, kw_only=True):
    """The longest time that a request waits for capacity, and its priority. Of waiting requests the one with
    the highest priority is placed first, then the oldest. A request that does not wait is placed or refused
    immediately, and its priority counts too: it is placed before waiting requests of lower priority.
    """

    flat: ClassVar = {"wait": "", "priority": "", "since": ""}
    limits_hosts: ClassVar = False

    wait: Wait | None = ""  # how long, such as 30m; empty or null: not at all
    priority: Priority = 0
    since: Seconds = 0.0  # time that decides the position among waiting requests; 0: time of arrival

    @property
    def waits(self) -> WaitTimes:
        return WaitTimes(self.wait or "", self.since)

    def placed(self) -> "PlacedPriority | None":
        return PlacedPriority(priority=self.priority) if self.priority else None

    def contradiction(self, request: Any, options: Any = None) -> str:
        if options is not None and seconds_of(self.wait) > options.max_wait:
            most = f"at most {options.max_wait:g} seconds are allowed (the setting max_wait)"
            return f"wait: {self.wait}, {most}"
        return ""


class PlacedPriority(PlacedPart, frozen=True, kw_only=True):
    """The priority of a placed instance."""

    priority: Priority = 0


def priority_of(parts: RequestParts | PlacedParts) -> int:
    """Return the priority of a request, or of the request of a placed instance."""
    part = parts.get(WaitPart) or parts.get(PlacedPriority)
    return 0 if part is None else part.priority


DEFAULT = ""  # in place of a project's id: all projects without a weight of their own
NAME_OF_DEFAULT = "default"  # its name for users

ProjectOrDefault = Annotated[str, Meta(max_length=255)]
Weight = Annotated[int, Meta(ge=1, le=10**6)]


class WeightEditRequested(Message, frozen=True, kw_only=True):
    """A request to set or delete the weight of a project, which decides its share of a backlog."""

    project: ProjectOrDefault
    weight: Weight | None = None  # None: delete the weight, so that the default applies


class WeightEdited(Tagged, frozen=True, kw_only=True):
    """The answer to an edit of the weight of a project."""

    project: ProjectOrDefault
    weight: Weight | None = None
    changed: bool = False


class WeightEditAnswered(Message, frozen=True, kw_only=True):
    result: WeightEdited


EDIT_WEIGHT = Query(
    "scheduler.weight",
    WeightEditRequested,
    WeightEditAnswered,
    "set or delete the weight of a project, or the default weight",
    ANYONE,
    "scheduler",
)


PART = MessagesPart(
    parts={RequestParts: WaitPart, PlacedParts: PlacedPriority},
    asked={PlacedPriority: lambda placed: WaitPart(priority=placed.priority)},
    acts=(Act("share", "admin", "weights of projects", sent(EDIT_WEIGHT)),),
    requested={WeightEditRequested: Requested(id=lambda message: "" if message.project else NAME_OF_DEFAULT)},
    done=(WeightEdited,),
    page_publishes=(BuildCancelRequested,),
)
