"""Messages of the bridge, which chooses hosts for Nova."""

from typing import Literal

from bus.acts import Act, Requested, as_named, sent
from bus.feature import MessagesPart
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable
from bus.topics import ANYONE, Query
from bus.vocabulary import Cause, LongList, Message, Seconds


class HostsAsked(Message, frozen=True, kw_only=True):
    """A query to choose and claim hosts for instances that another system, such as Nova, creates.

    No cell creates the instances and no id is retired, so hosts for the same instances may be requested
    again. If an instance has allocations, the reply contains them as the result of an earlier query. But if
    the request excludes all hosts of these allocations (an evacuation), another host is claimed in addition.
    """

    request: BuildRequested
    waited: Seconds = 0.0  # seconds since the first query for this request
    # claim: choose and claim hosts; check: only check whether the host of a rebuild fits the new image
    do: Literal["claim", "check"] = "claim"


class HostsAnswered(Message, frozen=True, kw_only=True):
    """The answer to HostsAsked: a claimed host for each instance, or the final refusal, or when to retry."""

    placed: LongList[BuildPlaced] = ()
    refused: BuildUnplaceable | None = None
    again: Seconds = 0.0  # seconds after which to retry: the present obstacle is temporary; 0: do not retry
    why: Cause = ""  # the obstacle, if `again` is set


SELECT_HOSTS = Query(
    "scheduler.select",
    HostsAsked,
    HostsAnswered,
    "choose and claim hosts for instances that another system builds",
    ANYONE,
    "scheduler",
)


PART = MessagesPart(
    acts=(
        Act(
            "choose hosts",
            "operator",
            "choose and claim hosts for instances that another system builds",
            sent(SELECT_HOSTS),
            limited_by=("cells",),
        ),
    ),
    requested={HostsAsked: Requested(real=as_named)},
)
