"""The state of a request while it is placed: its instances without a host, and its messages to publish."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import structs

from bus.claims import Choice, ConsumerClaim, Held, Moved, Refusal, Retired, RuleRefused
from bus.decisions import AlsoAsked, Decision, noted
from bus.messages import BuildEndRequested, BuildPlaced, BuildRequested, BuildUnplaceable, Selection
from bus.parts import PlacedParts, RequestParts
from bus.queries import Candidate
from bus.requests import Hints
from bus.resources import Provider
from bus.vocabulary import Allocations, Id, Message, cause_of
from scheduler_worker.core.build_specs import spec_of
from scheduler_worker.core.events import ComeAgain, Fence
from scheduler_worker.core.existing_claims import ClaimPlace, alternative_of, place_of
from scheduler_worker.core.order_sections import flavors_of, section_of
from scheduler_worker.core.ranking import Pick
from scheduler_worker.core.rule import Alternative, ClaimPart, HostLimit
from scheduler_worker.core.shortage import MAX_REFUSED, Shortage

ROUNDS = 5  # searches for one request without a pause


T = TypeVar("T")
MAX_CHOICES = 600  # hosts in all claims of an order together, which limits the size of the message
MAX_CHOICES_EACH = 64  # hosts in one claim of an order

# Reason for ending a single build; other builds of the request continue.
CANCELLED = "cancelled while it waited for a host"
DELETED = "deleted before it had a host"
CANCELLED_CODE = "cancelled"
ENDED_BEFORE = "it has ended before"

_NO_HINTS = Hints()
_FURTHER_FIELDS = tuple(name for name in AlsoAsked.__struct_fields__ if name not in ("hints", "parts"))
_further_fields = attrgetter(*_FURTHER_FIELDS)


class Settled(msgspec.Struct, frozen=True, gc=False):
    """An instance with a claimed host. Its result is published after its alternates are chosen."""

    instance: Id
    cell: str
    chosen: Selection
    generation: int
    decision: Decision
    alternative: Alternative | None  # what was placed; None: the request of a placed instance is invalid now
    alternates: tuple[Candidate, ...] = ()
    lacking: int = 0  # number of alternates that are still missing
    parts: tuple[ClaimPart, ...] = ()  # what features add to the message about it


class EndedInstance(msgspec.Struct, frozen=True, gc=False):
    """An instance that ended without a host."""

    instance: Id
    reason: str
    code: str = ""  # CANCELLED_CODE, if only this instance of the request was cancelled


class Tried(msgspec.Struct, frozen=True, gc=False):
    """The searches and refused claims of an order so far."""

    rounds: int = 0  # number of searches
    avoided: frozenset[str] = frozenset()  # providers of refused claims: they are full or deleted
    refusals: tuple[str, ...] = ()  # why placement refused the claims; each text once
    considered: int = 0  # hosts in the last search
    refused_rounds: int = 0  # number of rounds whose claims were refused
    by_rules: tuple[RuleRefused, ...] = ()  # final refusals of what a fallback chose

    @property
    def latest_refusals(self) -> tuple[str, ...]:
        """Return the latest refused hosts, at most MAX_REFUSED."""
        return self.refusals[-MAX_REFUSED:]


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """Why an order has no host."""

    invalid: str = ""  # why the request can never be placed, which is known before any search
    shortages: tuple[Shortage, ...] = ()  # why no host fits, for each attempt of this round
    # True if an optional attempt of this round would fit if the claims of other requests failed
    is_reserved: bool = False
    obstacle: str = ""  # why the request has no host so far
    refusal: RuleRefused | None = None  # the refusal of its claim, if a commit may let the claim succeed
    reason: str = ""  # why the request permanently has no host
    decision: Decision = Decision()  # the record of why the request permanently has no host
    lacks_remedies: bool = False  # True if the request fails, and helpful changes of it are not computed yet


class Times(msgspec.Struct, frozen=True, gc=False):
    """When a request was published, began to wait and was first retried; features compare these with their
    time limits.
    """

    requested: float = 0.0  # when the request was published; 0: unknown
    waiting_since: float = 0.0  # when the request began to wait for a host; 0: it has not waited
    retried_for: float = 0.0  # seconds since the first retry


class Order(msgspec.Struct, frozen=True, gc=False):
    """The state of a request during placement. Immutable: each step makes a new one."""

    request: BuildRequested
    # Flavors and page sizes in the sequence in which they are tried: each attempt has one alternative for
    # each section, as a rule one. Empty if the request is invalid.
    attempts: tuple[tuple[Alternative, ...], ...]
    instances: tuple[Id, ...]  # instances without a host that have not ended
    purpose: "Purpose"
    attempt: int = 0  # index of the attempt that is being tried
    alternates: int = 0  # number of alternates to choose for each instance
    picks: tuple[Pick, ...] = ()  # hosts of the first `instances`, until placement has answered the claims
    # Allocations of instances that an earlier delivery claimed; empty allocations: another client has
    # released them.
    found: tuple[tuple[Id, Held], ...] = ()
    settled: tuple[Settled, ...] = ()  # instances with a claimed host
    ended: tuple[EndedInstance, ...] = ()  # instances that get no host
    repeats: tuple[BuildEndRequested, ...] = ()  # of instances that their cells have ended
    tried: Tried = Tried()  # hosts and refusals of earlier attempts
    verdict: Verdict = Verdict()  # why the request has no host so far
    times: Times = Times()
    parts: tuple[Any, ...] = ()  # what fallbacks keep about the order, at most one value of a type
    content: str = ""  # digest of the request's content (bus/repetitions.py); empty: not known

    def changed(self, change: Callable[[Alternative], Alternative]) -> "Order":
        """Return a copy of the order in which `change` has replaced each alternative."""
        attempts = tuple([tuple([change(each) for each in attempt]) for attempt in self.attempts])
        return structs.replace(self, attempts=attempts)

    def limited(self, limit: HostLimit) -> "Order":
        """Return a copy that may not use the hosts of a limit."""
        return self.changed(lambda alternative: alternative.limited(limit)) if limit.roots else self

    def with_alternatives(self, **fields: Any) -> "Order":
        """Return the order with these fields replaced in each of its alternatives."""
        return self.changed(lambda alternative: dataclasses.replace(alternative, **fields))

    def part(self, type_: type[T]) -> T | None:
        """Return the order's part of this type, or None."""
        return next((part for part in self.parts if isinstance(part, type_)), None)

    def with_part(self, part: object) -> "Order":
        """Return a copy of the order with a part, which replaces one of the same type."""
        others = [other for other in self.parts if type(other) is not type(part)]
        return structs.replace(self, parts=(*others, part))

    def ended_before(self, instances: tuple[Id, ...]) -> "Order":
        """Return a copy of the order that only publishes again how some of its instances ended."""
        return structs.replace(self, instances=instances, verdict=Verdict(reason=ENDED_BEFORE))

    def with_obstacle(self, obstacle: str) -> "Order":
        """Return the order with this reason why it has no host so far."""
        return structs.replace(self, verdict=structs.replace(self.verdict, obstacle=obstacle))

    def with_invalid(self, why: str) -> "Order":
        """Return a copy of the order that will fail, because its request can never be placed."""
        return structs.replace(self, verdict=structs.replace(self.verdict, invalid=why))

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Return the alternatives of all attempts."""
        return tuple([alternative for attempt in self.attempts for alternative in attempt])

    @property
    def preferred(self) -> Alternative:
        """Return the alternative that is tried first; with sections, that of the first."""
        return self.attempts[0][0]

    @property
    def current(self) -> tuple[Alternative, ...]:
        """Return the alternatives of the current attempt: one for each section, as a rule one."""
        return self.attempts[self.attempt]

    @property
    def alternative(self) -> Alternative:
        """Return the alternative that is being tried; with sections, that of the first."""
        return self.attempts[self.attempt][0]

    def alternative_for(self, instance: Id) -> Alternative:
        """Return the alternative that is being tried for an instance: that of its section."""
        return self.attempts[self.attempt][section_of(self.request, instance)]

    @property
    def is_last_attempt(self) -> bool:
        """Return whether no attempt follows: if this one finds no host, the order ends without one."""
        return self.attempt + 1 >= len(self.attempts)

    @property
    def needed(self) -> int:
        """Return the least number of further instances that must get hosts; if fewer fit, none is placed."""
        if not self.request.at_least:
            return len(self.instances)
        return min(max(self.request.at_least - len(self.settled), 1), len(self.instances))

    @property
    def is_reserved(self) -> bool:
        """Return whether the order would fit in some attempt if the claims of other requests failed."""
        return self.verdict.is_reserved or any(short.is_reserved for short in self.verdict.shortages)

    @property
    def is_searched_again(self) -> bool:
        """Return whether another search follows without a pause, because capacity that is reserved for claims
        of other requests may be free then.
        """
        return self.is_reserved and self.tried.rounds + 1 < ROUNDS

    @property
    def has_enough(self) -> bool:
        """Return whether `at_least` instances have hosts: then the request does not wait for the others."""
        return 0 < self.request.at_least <= len(self.settled)

    @property
    def settled_roots(self) -> frozenset[str]:
        """Return the roots of the hosts that the placed instances have."""
        return frozenset([settled.chosen.root for settled in self.settled])

    def why_no_host(self) -> str:
        """Return the reason why no host fits, as one sentence for each flavor tried."""
        request, several = self.request, len(self.instances)
        first, *further = self.verdict.shortages
        reason = first.reason(request, several, self.tried.latest_refusals)
        for short in further:
            flavor = flavors_of(request)[short.alternative_index]
            reason = f"{reason}. As {flavor.name!r}: {short.reason(request, several, ())}"
        return reason

    def held_before(self) -> tuple[tuple[Id, Held], ...]:
        """Return the instances that hold allocations since an earlier delivery of the request."""
        return tuple([(instance, held) for instance, held in self.found if held.allocations])

    def released_elsewhere(self) -> tuple[tuple[Id, Held], ...]:
        """Return the instances whose allocations another client has released."""
        return tuple([(instance, held) for instance, held in self.found if not held.allocations])

    def fences(self) -> tuple[Fence, ...]:
        """Return the consumers to retire: the instances whose allocations another client has released or, if
        there are none, all instances without a host.
        """
        if released := self.released_elsewhere():
            return tuple([Fence(each, held.generation, why_released(each)) for each, held in released])
        return tuple([Fence(instance, None, self.verdict.reason) for instance in self.instances])


def attempts_of(
    request: BuildRequested, alternatives: Sequence[Alternative]
) -> tuple[tuple[Alternative, ...], ...]:
    """Return the alternatives of a request as attempts: those of all sections are tried together; without
    sections, one alternative is tried after the other.
    """
    if request.parts.sections and alternatives:
        return (tuple(alternatives),)
    return tuple([(alternative,) for alternative in alternatives])


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


def further_constraints(request: BuildRequested) -> AlsoAsked | None:
    """Return the request's fields that influence the choice of hosts in addition to flavor and image, such as
    zone and hints, for the decision record; None if all are empty."""
    hints = None if request.hints == _NO_HINTS else request.hints
    recorded = [each for part in request.parts if (each := part.recorded()) is not None]
    parts = RequestParts(*recorded) if recorded else None
    asked = _further_fields(request)
    if hints is None and parts is None and not any(asked):
        return None
    return AlsoAsked(hints=hints, parts=parts, **dict(zip(_FURTHER_FIELDS, asked, strict=True)))


def selection_of(way: Candidate) -> Selection:
    """Return a host as a build stores it. Mappings of request groups are left out if all of them name only
    the root.
    """
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


def choices_of(
    alternative: Alternative | None, ways: Sequence[Candidate], taken: dict[Id, Allocations]
) -> tuple[Choice, ...]:
    """Return what a claim or an alternate of an alternative names for each candidate in `ways`; `taken` is
    that of `Restriction.choices`.
    """
    if alternative is None or alternative.restriction is None:
        return tuple([Choice(way.allocations, way.shapes) for way in ways])
    return alternative.restriction.choices(ways, taken)


def alternates_of(settled: Settled) -> tuple[Selection, ...]:
    """Return the alternates of a placed instance, with the claims that the restriction of its alternative
    requires on them.
    """
    alternative, ways = settled.alternative, settled.alternates
    if alternative is None or alternative.restriction is None or alternative.restriction.is_optional:
        return tuple([selection_of(way) for way in ways])
    choices = alternative.restriction.choices(ways, {})
    return tuple(
        [structs.replace(selection_of(way), choice=each) for way, each in zip(ways, choices, strict=True)]
    )


def refusals_of(pick: Pick, refusals: Sequence[Refusal]) -> tuple[list[str], set[str]]:
    """Return why placement refused the claimed hosts, and the providers that later choices should avoid."""
    texts, avoid = [], set()
    for way, refusal in zip(pick.choices, refusals, strict=False):
        texts.append(f"{way.host}: {refusal}")
        if not isinstance(refusal, Moved) and (provider := getattr(refusal, "provider", "")):
            avoid.add(provider)
    return texts, avoid


def failed(order: Order, reason: str, decision: Decision, *, lacks_remedies: bool = False) -> Order:
    """Return an order of which all instances without a host end for the reason `reason`."""
    verdict = structs.replace(
        order.verdict, reason=cause_of(reason), decision=decision, lacks_remedies=lacks_remedies
    )
    return structs.replace(order, verdict=verdict)


def why_released(instance: Id) -> str:
    """Return the reason for an instance whose allocations another client has released."""
    return f"what {instance} held was released by another client"


def with_ended(order: Order, instance: Id, reason: str) -> Order:
    """Return the order with this instance ended for the reason, which becomes that of the whole order."""
    reason = cause_of(reason)
    verdict = structs.replace(order.verdict, reason=reason)
    return structs.replace(order, verdict=verdict, ended=(*order.ended, EndedInstance(instance, reason)))


def usable_alternates(
    pick: Pick, way: Candidate, excluding: frozenset[str], avoid: set[str], several: int
) -> tuple[Candidate, ...]:
    """Return at most `several` of the pick's hosts as alternates: hosts in the cell of the claimed host
    `way`, without hosts in `excluding`, and without hosts or providers in `avoid`.
    """
    found: dict[str, Candidate] = {}
    for other in (*pick.alternates, *pick.choices):
        if other.cell != way.cell or other.root in excluding or other.root in found:
            continue
        if other.root not in avoid and other.allocations.keys().isdisjoint(avoid):
            found[other.root] = other
    return tuple(found.values())[:several]


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """The purpose of an order decides which claims it makes, what answers mean for its instances, and how it
    ends. This one builds new instances; features derive others from it, and override what differs.
    """

    name: ClassVar[str] = "build"
    # Whether instances that get no host are retired, so that their ids cannot be claimed later. False for ids
    # of another system, which may be requested again: such orders replace no instances.
    retires: ClassVar[bool] = True
    # Whether the instances are new ones of the request's project. Only then does the share of the project
    # decide when the request is tried, and may they use the capacity that features keep for the project.
    boots: ClassVar[bool] = True
    # Whether another system builds the instances, and may have begun before.
    is_external: ClassVar[bool] = False

    # whether the instance leaves a host that is down: then it may draw from failover capacity
    leaves_lost_host: bool = False
    holds: Allocations = field(default_factory=dict)  # what its instance holds on the host that it leaves
    current_roots: frozenset[str] = frozenset()  # the hosts on which its instance is now
    replaces: frozenset[Id] = frozenset()  # consumers that do not restrict the hosts of its instance
    waiting_since: float = 0.0  # since when its instance waits for a host; 0: it has not waited before

    def claim(self, order: Order, instance: Id, choices: tuple[Choice, ...]) -> ConsumerClaim:
        """Return the claim of an instance; `choices` are the chosen hosts, best first."""
        request = order.request
        return ConsumerClaim(
            consumer=instance, generation=None, choices=choices, project=request.project, user=request.user
        )

    def claim_answered(
        self, order: Order, instance: Id, result: Held | Retired, patience: float
    ) -> Order | ComeAgain:
        """Return the order after placement answered a claim with the state of its consumer, or the order to
        deliver the request again. `instance` is no longer among the order's instances.
        """
        return self.retire_answered(order, instance, result)

    def retire_answered(self, order: Order, instance: Id, result: Held | Retired) -> Order:
        """Return the order after placement did not retire an instance, because of the state `result`."""
        match result:
            case Held():
                return structs.replace(order, found=(*order.found, (instance, result)))
            case Retired(unplaceable=True, why=why) if why in (CANCELLED, DELETED):
                cancelled = EndedInstance(instance, why, CANCELLED_CODE)
                return structs.replace(order, ended=(*order.ended, cancelled))
            case Retired(unplaceable=True, why=why):
                return with_ended(order, instance, why)
            # Its cell has published its end, or lost it in a fail-over of its database. A claim without a
            # cell was retired by another client.
            case Retired(revivable=False, cell=cell, why=why) if cell:
                asked = BuildEndRequested(
                    build=instance,
                    request=order.request.request,
                    cell=cell,
                    why=why,
                    reply_to=order.request.reply_to,
                )
                return structs.replace(order, repeats=(*order.repeats, asked))
            case Retired():
                return order

    def located(
        self, order: Order, instance: Id, held: Held, providers: Mapping[Id, Provider]
    ) -> Settled | EndedInstance | ComeAgain:
        """Return what follows from allocations that an instance holds since an earlier delivery. `providers`
        has the providers of the allocations, by id.
        """
        place = place_of(held, providers)
        if place is None:  # no scheduler placed this consumer: its allocations must not be released
            where = ", ".join(sorted(held.allocations))
            holds = f"{instance} holds resources of {where} already"
            return EndedInstance(instance, f"{holds}, where no agent builds: it is no build of ours")
        return settled_at(order, instance, held, place)

    def ends(self, order: Order) -> Sequence[Message]:
        """Return the messages that end the order."""
        request, verdict = order.request, order.verdict
        repeats = [structs.replace(each, content=order.content) for each in order.repeats]
        messages: list[Message] = [*repeats, *(_placed(order, settled) for settled in order.settled)]
        if failed := tuple([each.instance for each in order.ended if each.code != CANCELLED_CODE]):
            messages.append(unplaceable(request, failed, verdict.reason, verdict.decision))
        for each in order.ended:
            if each.code == CANCELLED_CODE:
                decision = Decision(code=CANCELLED_CODE)
                messages.append(unplaceable(request, (each.instance,), each.reason, decision))
        return messages


BUILD = Purpose()


def _placed(order: Order, settled: Settled) -> BuildPlaced:
    """Return the message that a settled instance has got its host."""
    request, placed = order.request, settled.alternative
    flavor = section_of(request, settled.instance) if placed is None else placed.alternative_index
    message = BuildPlaced(
        build=settled.instance,
        request=request.request,
        cell=settled.cell,
        chosen=settled.chosen,
        generation=settled.generation,
        alternates=alternates_of(settled),
        spec=spec_of(request, flavor),
        decision=noted(settled.decision, request.unknown_fields),
        reply_to=request.reply_to,
        requested=order.times.requested,
        waited_since=order.times.waiting_since,
        content=order.content,
    )
    placed_parts = [part.placed() for part in request.parts]
    if any(placed_parts):
        message = structs.replace(message, parts=PlacedParts(*placed_parts))
    for part in settled.parts:
        message = part.in_placed(message)
    return message


def settled_at(order: Order, instance: Id, held: Held, place: ClaimPlace) -> Settled:
    """Return an instance as settled on the host that it holds since an earlier delivery of its request; all
    of its alternates are still to be chosen.
    """
    alternative: Alternative | None = None
    if order.attempts:
        alternative = order.alternative_for(instance)
        if not order.request.parts.sections:
            alternative = alternative_of(held, order.alternatives)
    chosen = Selection(root=place.root, host=place.host, agent=place.agent, choice=Choice(held.allocations))
    return Settled(
        instance=instance,
        cell=place.cell,
        chosen=chosen,
        generation=held.generation,
        decision=Decision(considered=order.tried.considered),
        alternative=alternative,
        lacking=order.alternates if order.attempts else 0,
    )
