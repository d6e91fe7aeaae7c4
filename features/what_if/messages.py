"""Questions to the scheduler about the hosts that requests would get if they were made now."""

from typing import Annotated

from msgspec import Meta, field

from bus.claims import ConsumerClaim
from bus.decisions import UNREADABLE, Decision
from bus.feature import MessagesPart
from bus.messages import BuildRequested
from bus.queries import HeldHost
from bus.topics import ANYONE, Query
from bus.vocabulary import (
    Amount,
    Cause,
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


class PlacedThere(Value, frozen=True, kw_only=True):
    """In the answer to a what-if question: a host, and how many instances it would get."""

    root: Id
    host: Text
    cell: Text
    zone: Text = ""
    instances: Amount = 1


class RankedHost(Value, frozen=True, kw_only=True):
    """In the answer to a what-if question: a host that would fit, with its score from each weigher."""

    root: Id
    host: Text
    cell: Text
    zone: Text = ""
    scores: LargeMap[Text, Number] = field(default_factory=dict)


class CapacityLeft(Value, frozen=True, kw_only=True):
    """The number of further instances that would fit into one availability zone of a cell."""

    cell: Text
    zone: Text = ""
    hosts: Count = 0
    instances: Count = 0


class WhatIf(Message, frozen=True, kw_only=True):
    """A what-if question: how would this request be placed if it were made now? Nothing is claimed."""

    request: BuildRequested
    best: Annotated[int, Meta(ge=1, le=64)] = 8  # number of hosts to return, best first
    room: bool = False  # also return how many further instances would fit
    # Number of instances, which may exceed the limit of one boot; 0: as in the request.
    count: Annotated[int, Meta(ge=0, le=10_000)] = 0
    is_external: bool = False  # another system, such as Nova, would build the instances
    replacing: bool = False  # if the request fits nowhere, also return the instances that it would replace
    claims: bool = False  # also return the claims that the request would make


class BacklogPlace(Value, frozen=True, kw_only=True):
    """In the answer to a what-if question: the place of the request among the backlogged requests of its
    project, which takes turns with other projects in proportion to the weights.
    """

    before: Count  # number of the project's requests, at all schedulers, that are served earlier
    weight: Number = 1.0
    # times by which it would be evaluated with a probability of 50 % and 90 %; None: unknown
    start_p50: Seconds | None = None
    start_p90: Seconds | None = None


class InstancesPermitted(Value, frozen=True, kw_only=True):
    """In the answer to a what-if question: a limit outside of hosts, such as a quota, that permits only some
    further instances.
    """

    permits: Whole  # number of further instances
    says: Cause  # the limit, in words


class ReplacedInstance(Value, frozen=True, kw_only=True):
    """In the answer to a what-if question: an instance whose place the request would take."""

    build: Id
    says: Cause  # why it may be replaced, and what becomes of it, such as `of priority 1: deleted`


class WhatIfAnswered(Message, frozen=True, kw_only=True):
    """The answer to WhatIf: the hosts that the request would get now, or why it would get no host."""

    fits: bool
    refusal: Cause = ""  # why the request would be refused before hosts are searched; see `decision.code`
    flavor: Count = 0  # the flavor that fits; 0: the requested flavor; n: alternative flavor number n
    placed: LongList[PlacedThere] = ()  # hosts of the request's instances
    best: LongList[RankedHost] = ()  # the best hosts for one instance
    decision: Decision = Decision()  # the decision about the first instance; or why there is no host
    room: LongList[CapacityLeft] = ()
    cut: Cause = ""  # why more instances may fit than in `room`
    permitted: InstancesPermitted | None = None  # None: only hosts limit the number of further instances
    replaced: LongList[ReplacedInstance] = ()  # instances whose place the hosts in `placed` suppose
    notes: ShortList[Cause] = ()  # what else prevents the request, such as why it would replace no instance
    backlog: BacklogPlace | None = None  # None: the project has no backlog
    # if the request would wait: times by which it gets a host with a probability of 50 % and 90 %
    start_p50: Seconds | None = None
    start_p90: Seconds | None = None
    claims: LongList[ConsumerClaim] = ()  # the claim of each instance, on the hosts in `placed`
    held: LongList[HeldHost] = ()  # hosts that the decision names and that are held for waiting requests

    @property
    def refusal_sentence(self) -> str:
        """A sentence that says why the request would be refused before hosts are searched; "" if not."""
        if not self.refusal:
            return ""
        code = self.decision.code
        what = "was not evaluated" if not code else f"would be refused [{code}]"
        return f"the request {'is invalid' if code == UNREADABLE else what}: {self.refusal}"


WHAT_IF = Query(
    "scheduler.what_if",
    WhatIf,
    WhatIfAnswered,
    "the decision about a request, without claiming",
    ANYONE,
    "scheduler",
)


PART = MessagesPart(page_asks=(WHAT_IF,))
