"""The state of a request while it is placed: its instances without a host, and its messages to publish."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from bus.claims import Choice, ClaimResult, Held, Moved, Refusal, Retired
from bus.decisions import AlsoAsked, Decision, noted
from bus.messages import BuildPlaced, BuildRequested, BuildUnplaceable, Selection
from bus.moves import MovePlaced, MoveRefused
from bus.preemption import PriorityClass, Victim
from bus.queries import Candidate
from bus.requests import Hints
from bus.vocabulary import MAX_CAUSE, Id
from scheduler_worker.core.build_specs import spec_of
from scheduler_worker.core.drawing import SlotAssignments
from scheduler_worker.core.events import Begun, Fence
from scheduler_worker.core.move_start import MoveStart, refused
from scheduler_worker.core.rejections import MAX_REFUSED, Shortage
from scheduler_worker.core.roles import flavors_of, role_of
from scheduler_worker.core.rule import Alternative
from scheduler_worker.core.scale import Pick
from scheduler_worker.extension import HostLimit

MAX_CHOICES = 600  # hosts in all claims of an order together, which limits the size of the message
MAX_CHOICES_EACH = 64  # hosts in one claim of an order

# Reason for ending a single build; other builds of the request continue.
CANCELLED = "cancelled while it waited for a host"
DELETED = "deleted before it had a host"

_NO_HINTS = Hints()
_FURTHER_FIELDS = tuple(name for name in AlsoAsked.__struct_fields__ if name != "hints")
_further_fields = attrgetter(*_FURTHER_FIELDS)


class Settled(msgspec.Struct, frozen=True, gc=False):
    """An instance with a claimed host. Its result is published after its alternates are chosen."""

    instance: Id
    cell: str
    chosen: Selection
    generation: int
    decision: Decision
    alternative_index: int  # index of the flavor that was placed
    spares: tuple[Candidate, ...] = ()
    lacking: int = 0  # number of alternates that are still missing
    victims: tuple[Victim, ...] = ()  # instances that this instance preempts


class Order(msgspec.Struct, frozen=True, gc=False):
    """The state of a request during placement. Immutable: each step makes a new one."""

    request: BuildRequested
    alternatives: tuple[Alternative, ...]
    instances: tuple[Id, ...]  # instances without a host that have not ended
    bytes: int  # approximate size of the final messages
    waited: float = 0.0  # seconds since the first retry
    since: float = 0.0  # when the request began to wait for a host; 0: it has not waited
    requested: float = 0.0  # when the request was published; 0: unknown
    # index of the flavor that is being evaluated; with roles, of the flavor of the first role
    alternative_index: int = 0
    rounds: int = 0  # number of searches so far
    picks: tuple[Pick, ...] = ()  # hosts of the first `instances`, until placement has answered the claims
    held: tuple[tuple[Id, Held], ...] = ()  # instances that hold allocations after an earlier delivery
    # instances whose allocations another client has released, with the consumer's generation
    emptied: tuple[tuple[Id, int], ...] = ()
    settled: tuple[Settled, ...] = ()
    fenced: tuple[Id, ...] = ()  # instances that ended without a host
    unwanted: tuple[tuple[Id, str], ...] = ()  # instances that were cancelled, with the reason
    avoid: frozenset[str] = frozenset()  # providers of refused claims: they are full or deleted
    refused: tuple[str, ...] = ()
    considered: int = 0
    obstacle: str = ""  # why the request has no host so far
    reason: str = ""  # why the request permanently has no host
    decision: Decision = Decision()  # the record of why the request permanently has no host
    unexplained: bool = False  # True if the request fails, and helpful changes of it are not computed yet
    shorts: tuple[Shortage, ...] = ()  # why no host fits, for each alternative tried
    more_alternates: int = 0  # number of alternates in addition to those requested, if any are requested
    move: MoveStart | None = None  # the move, if the order is one; the move's id is the order's only instance
    begun: bool = False  # the move has its claim already
    is_external: bool = False  # another system builds the instances: their ids are not retired
    members: tuple[Id, ...] = ()  # with `is_external`: members of the server group in the other system
    # with `is_external`: allocations on excluded hosts that the instances keep in addition to the claim
    holdings: tuple[tuple[Id, Held], ...] = ()
    reserves: Id | None = None  # the reservation for which the order claims slots, if any
    preempts: PriorityClass | None = None  # class that permits the request to preempt; None: it may not
    sought: bool = False  # instances to preempt were searched in this round
    spares: str = ""  # why no instances can be preempted
    victims: tuple[tuple[Victim, ...], ...] = ()  # by pick: the instances to preempt

    def with_alternatives(self, **fields: Any) -> "Order":
        alternatives = tuple([replace(alternative, **fields) for alternative in self.alternatives])
        return structs.replace(self, alternatives=alternatives)

    def limited(self, limit: HostLimit) -> "Order":
        """Return a copy that may not use the hosts of a limit."""
        if not limit.roots:
            return self
        alternatives = tuple([alternative.limited(limit) for alternative in self.alternatives])
        return structs.replace(self, alternatives=alternatives)

    @property
    def alternates(self) -> int:
        return self.request.alternates + (self.more_alternates if self.request.alternates else 0)

    @property
    def alternative(self) -> Alternative:
        return self.alternatives[self.alternative_index]

    @property
    def following_index(self) -> int:
        """Return the index of the flavor to evaluate next: after the flavors of all roles, if any, else after
        the flavor being evaluated.
        """
        return self.alternative_index + max(len(self.request.roles), 1)

    @property
    def evaluated(self) -> tuple[Alternative, ...]:
        """Return the flavors that are evaluated together: of all roles, or the one flavor."""
        return self.alternatives[self.alternative_index : self.following_index]

    def index_for(self, instance: Id) -> int:
        """Return the index of the flavor that an instance gets: the flavor of its role or, without roles, the
        flavor being evaluated.
        """
        return self.alternative_index + role_of(self.request, instance)

    @property
    def sharing_project(self) -> str:
        """Return the project whose share decides the turn of the request; none for moves."""
        return "" if self.move is not None else self.request.project

    def waits_since(self, now: float) -> float:
        """Return when the request began to wait: for a preempted instance, the time of its original request;
        else `now`.
        """
        since = self.move.asked.since if self.move is not None else 0.0
        return min(since, now) if since else now

    @property
    def needed(self) -> int:
        """Return the least number of further instances that must get hosts; if fewer fit, none is placed."""
        if not self.request.at_least:
            return len(self.instances)
        return min(max(self.request.at_least - len(self.settled), 1), len(self.instances))

    @property
    def settled_roots(self) -> frozenset[str]:
        return frozenset([settled.chosen.root for settled in self.settled])

    @property
    def refusals(self) -> tuple[str, ...]:
        return self.refused[-MAX_REFUSED:]

    def why_no_host(self) -> str:
        """Return the reason why no host fits, as one sentence for each flavor tried."""
        request, several = self.request, len(self.instances)
        first, *further = self.shorts
        reason = first.reason(request, several, self.refusals)
        for short in further:
            flavor = flavors_of(request)[short.alternative_index]
            reason = f"{reason}. As {flavor.name!r}: {short.reason(request, several, ())}"
        return reason

    @property
    def excluded_roots(self) -> frozenset[str]:
        return frozenset(self.alternatives[0].question.not_roots) if self.alternatives else frozenset()

    def fences(self) -> tuple[Fence, ...]:
        """Return the consumers to retire: the instances whose allocations another client has released or, if
        there are none, all instances without a host.
        """
        if self.emptied:
            return tuple([Fence(instance, number, given_back(instance)) for instance, number in self.emptied])
        return tuple([Fence(instance, None, self.reason) for instance in self.instances])

    def messages(self) -> list[BuildPlaced | BuildUnplaceable]:
        """Return the final messages of a request, which contain a result for each instance."""
        request = self.request
        messages: list[BuildPlaced | BuildUnplaceable] = []
        for settled in self.settled:
            used = role_of(request, settled.instance)
            if self.alternatives:  # without alternatives, the request is unreadable now
                used = self.alternatives[settled.alternative_index].alternative_index
            messages.append(
                BuildPlaced(
                    build=settled.instance,
                    request=request.request,
                    cell=settled.cell,
                    chosen=settled.chosen,
                    generation=settled.generation,
                    alternates=self.alternates_of(settled),
                    spec=spec_of(request, used),
                    decision=noted(settled.decision, request.unknown_fields),
                    reply_to=request.reply_to,
                    priority=request.priority,
                    since=self.since,
                    preempts=settled.victims,
                    requested=self.requested,
                )
            )
        if self.fenced:
            messages.append(unplaceable(request, self.fenced, self.reason, self.decision))
        for instance, why in self.unwanted:
            messages.append(unplaceable(request, (instance,), why, Decision(code="cancelled")))
        return messages

    def alternates_of(self, settled: Settled) -> tuple[Selection, ...]:
        draw = self.alternatives[settled.alternative_index].draw if self.alternatives else None
        if draw is None or draw.optional:
            return tuple([selection_of(spare) for spare in settled.spares])
        choices = SlotAssignments().choices(draw, settled.spares)
        return tuple(
            [
                structs.replace(selection_of(spare), choice=choice)
                for spare, choice in zip(settled.spares, choices, strict=True)
            ]
        )

    def move_message(self, move: MoveStart) -> MovePlaced | MoveRefused:
        """Return the scheduler's result of a move: a host is claimed, or the move is refused."""
        for settled in self.settled:
            alternates, decision = self.alternates_of(settled), settled.decision
            return move.placed(settled.generation, settled.chosen, alternates, decision, settled.cell)
        for _, why in self.unwanted:
            return refused(move.asked, why, "cancelled", Decision(code="cancelled"))
        return refused(move.asked, self.reason, self.decision.code, self.decision)


Begins = tuple[Order, Begun]  # an order, and its first event


def unplaceable(
    request: BuildRequested, instances: tuple[Id, ...], reason: str, decision: Decision
) -> BuildUnplaceable:
    """Return the message that reports `instances` of a request as unplaceable, with the given reason."""
    return BuildUnplaceable(
        request=request.request,
        instances=instances,
        reason=reason,
        decision=noted(decision, request.unknown_fields),
        reply_to=request.reply_to,
    )


def also_asked(request: BuildRequested) -> AlsoAsked | None:
    """Return the request's fields that influence the choice of hosts in addition to flavor and image, such as
    zone and hints, for the decision record; None if all are empty."""
    hints = None if request.hints == _NO_HINTS else request.hints
    asked = _further_fields(request)
    if hints is None and not any(asked):
        return None
    return AlsoAsked(hints=hints, **dict(zip(_FURTHER_FIELDS, asked, strict=True)))


def selection_of(way: Candidate) -> Selection:
    groups = way.mappings
    if groups and all(serving == (way.root,) for serving in groups.values()):
        groups = {}
    return Selection(
        root=way.root,
        host=way.host,
        agent=way.agent,
        choice=Choice(way.allocations, way.shapes),
        mappings=groups,
    )


def refusals_of(pick: Pick, refusals: Sequence[Refusal]) -> tuple[list[str], set[str]]:
    """Return why placement refused the claimed hosts, and the providers that later choices should avoid."""
    texts, avoid = [], set()
    for way, refusal in zip(pick.choices, refusals, strict=False):
        texts.append(f"{way.host}: {refusal}")
        if not isinstance(refusal, Moved) and (provider := getattr(refusal, "provider", "")):
            avoid.add(provider)
    return texts, avoid


def without_placed(order: Order, results: Sequence[ClaimResult]) -> Order:
    """Return a redelivered order without the instances that already have allocations or have ended, according
    to placement's answers to their claims (`results`).
    """
    left: list[Id] = []
    obstacle = "its other instances were placed or ended before"
    order = structs.replace(order, obstacle=obstacle, alternative_index=0, shorts=())
    for instance, result in zip(order.instances, results, strict=False):
        if isinstance(result, Held | Retired):
            order = placed_before(order, instance, result)
        else:  # the instance has no allocations and has not ended, so it may be placed
            left.append(instance)
    return structs.replace(order, instances=(*left, *order.instances[len(results) :]))


def placed_before(order: Order, instance: Id, result: Held | Retired) -> Order:
    """Record in an order that an earlier delivery of its request placed or ended an instance."""
    if order.is_external and isinstance(result, Held) and order.excluded_roots.issuperset(result.roots):
        return structs.replace(
            order, holdings=(*order.holdings, (instance, result)), instances=(*order.instances, instance)
        )
    match result:
        case Held() if order.move is not None:
            return ended(order, instance, "move: the id belongs to a consumer that holds resources")
        case Held(generation=generation, allocations=allocations) if not allocations:
            return structs.replace(order, emptied=(*order.emptied, (instance, generation)))
        case Held():
            return structs.replace(order, held=(*order.held, (instance, result)))
        case Retired(unplaceable=True, why=why) if why in (CANCELLED, DELETED):
            return structs.replace(order, unwanted=(*order.unwanted, (instance, why)))
        case Retired(unplaceable=True, why=why):
            if order.move is not None and why != order.reason:  # the earlier end has another reason
                order = structs.replace(order, decision=Decision())
            return ended(order, instance, why)
        case Retired():
            return order if order.move is None else structs.replace(order, begun=True)


def given_back(instance: Id) -> str:
    return f"what {instance} held was released by another client"


def ended(order: Order, instance: Id, reason: str) -> Order:
    return structs.replace(order, reason=reason[:MAX_CAUSE], fenced=(*order.fenced, instance))


def spares_of(
    pick: Pick, way: Candidate, excluding: frozenset[str], avoid: set[str], several: int
) -> tuple[Candidate, ...]:
    """Return at most `several` of the pick's hosts as alternates: hosts in the cell of the claimed host
    `way`, without hosts in `excluding`, and without hosts or providers in `avoid`.
    """
    found: dict[str, Candidate] = {}
    for spare in (*pick.spares, *pick.choices):
        if spare.cell != way.cell or spare.root in excluding or spare.root in found:
            continue
        if spare.root not in avoid and spare.allocations.keys().isdisjoint(avoid):
            found[spare.root] = spare
    return tuple(found.values())[:several]
