"""The state of a request while it is placed: its instances without a host, and its messages to publish."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import structs
from msgspec.structs import replace

from bus.claims import (
    Choice,
    Claimed,
    ClaimResult,
    ConsumerClaim,
    Held,
    Moved,
    Refusal,
    Refused,
    Released,
    ReleaseResult,
    Retired,
    RuleRefused,
)
from bus.decisions import RULE_ERROR, AlsoAsked, Decision, noted
from bus.messages import BuildEndRequested, BuildPlaced, BuildRequested, BuildUnplaceable, Selection
from bus.parts import PlacedParts, RequestParts
from bus.queries import Candidate
from bus.reports import SHARES
from bus.requests import BuildSpec, Flavor, Hints
from bus.resources import Provider
from bus.vocabulary import Allocations, Contended, Id, Message, cause_of
from scheduler_worker.core import events
from scheduler_worker.core.events import ComeAgain, Fence, Need
from scheduler_worker.core.fitting import MAX_REFUSED, Shortage
from scheduler_worker.core.ranking import Pick
from scheduler_worker.core.rule import Alternative, ClaimPart, HostLimit

# Section: the instances of an order by the sections of its request; each section has a flavor of its own.


class OrderSection(NamedTuple):
    """Instances of an order in one section of its request, with the alternative being tried for them."""

    alternative: Alternative
    name: str  # of the section; "": the request has no sections
    instances: tuple[Id, ...]


def flavors_of(request: BuildRequested) -> tuple[Flavor, ...]:
    """Return the flavors of a request, in the sequence of `alternative_index`: those of its sections, or the
    preferred flavor and then its alternatives.
    """
    if sections := request.parts.sections:
        return tuple([section.flavor for section in sections])
    return (request.flavor, *request.or_else)


def sections_of(
    request: BuildRequested, alternatives: Sequence[Alternative], instances: Sequence[Id]
) -> list[OrderSection]:
    """Return the given instances grouped by section; without sections, one group with all of them.
    `alternatives` has one alternative for each section.
    """
    if not (sections := request.parts.sections):
        return [OrderSection(alternatives[0], "", tuple(instances))]
    of_each: list[list[Id]] = [[] for _ in sections]
    for instance in instances:
        of_each[section_of(request, instance)].append(instance)
    return [
        OrderSection(alternative, section.name, tuple(some))
        for alternative, section, some in zip(alternatives, sections, of_each, strict=True)
        if some
    ]


def section_of(request: BuildRequested, instance: Id) -> int:
    """Return the index of the section that an instance is in; 0 without sections."""
    if len(sections := request.parts.sections) < 2:
        return 0
    position = request.instances.index(instance)
    for number, section in enumerate(sections):
        position -= section.count
        if position < 0:
            return number
    return len(sections) - 1


T = TypeVar("T")

ROUNDS = 5  # searches for one request without a pause
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
    settled: tuple[Settled, ...] = ()
    ended: tuple[EndedInstance, ...] = ()
    repeats: tuple[BuildEndRequested, ...] = ()  # of instances that their cells have ended
    tried: Tried = Tried()
    verdict: Verdict = Verdict()
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
        return self.changed(lambda alternative: dataclasses.replace(alternative, **fields))

    def part(self, type_: type[T]) -> T | None:
        return next((part for part in self.parts if isinstance(part, type_)), None)

    def with_part(self, part: object) -> "Order":
        """Return a copy of the order with a part, which replaces one of the same type."""
        others = [other for other in self.parts if type(other) is not type(part)]
        return structs.replace(self, parts=(*others, part))

    def ended_before(self, instances: tuple[Id, ...]) -> "Order":
        """Return a copy of the order that only publishes again how some of its instances ended."""
        return structs.replace(self, instances=instances, verdict=Verdict(reason=ENDED_BEFORE))

    def with_obstacle(self, obstacle: str) -> "Order":
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
    return f"what {instance} held was released by another client"


def with_ended(order: Order, instance: Id, reason: str) -> Order:
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


# Section: makes the specs of builds for agents, and limits their sizes.


MAX_METADATA_BYTES = 64 * 1024
MAX_SPEC_BYTES = 256 * 1024  # bytes of one build's spec: the agent's message also contains hosts and decision
MAX_SPECS_BYTES = 16 * 1024 * 1024  # bytes of the specs of all builds of a request together
_encode = msgspec.json.Encoder().encode


def spec_of(request: BuildRequested, alternative_index: int = 0) -> BuildSpec:
    """Return the spec of a build for its agent, with the flavor of an alternative or of a section."""
    return BuildSpec(
        flavor=flavors_of(request)[alternative_index],
        image=request.image,
        project=request.project,
        user=request.user,
        metadata=request.metadata,
        name=request.name,
    )


def too_much(request: BuildRequested, size: int, together: int) -> str:
    """Return why a request is too large to be sent to agents, or "" if it is not. `size` is the size of one
    build's spec, `together` the size of all builds' specs.
    """
    metadata = len(_encode(request.metadata)) if size > MAX_METADATA_BYTES else 0
    if metadata > MAX_METADATA_BYTES:
        return f"metadata: {metadata} bytes, at most {MAX_METADATA_BYTES}"
    if size > MAX_SPEC_BYTES:
        return f"flavor, image and metadata: {size} bytes together, at most {MAX_SPEC_BYTES} can be built"
    if together > MAX_SPECS_BYTES:
        return (
            f"instances: {len(request.instances)} of them, with {size} bytes of flavor, image and metadata"
            f" each, are {together} bytes in all, at most {MAX_SPECS_BYTES} in one request"
        )
    return ""


def size_of(request: BuildRequested) -> int:
    """Return the size in bytes of the longest spec of a build of this request: each flavor of the
    request gives another spec.
    """
    return max([len(_encode(spec_of(request, index))) for index in range(len(flavors_of(request)))])


# Section: finds the host of an existing claim, and the flavor that it was made for.


@dataclass(frozen=True, slots=True)
class ClaimPlace:
    """The host on which an existing claim has its allocations, and the agent of this host."""

    root: str
    host: str
    cell: str
    agent: str


def place_of(held: Held, providers: Mapping[str, Provider]) -> ClaimPlace | None:
    """Return the host of existing allocations, or None if no agent reports any of their providers."""
    known = [providers[id_] for id_ in held.allocations if id_ in providers]
    owned = [provider for provider in known if provider.agent and provider.cell]
    if not owned:
        return None
    order = [(SHARES in one.traits, one.root not in held.allocations, one.root) for one in owned]
    first = owned[order.index(min(order))]
    return ClaimPlace(first.root, first.host, first.cell, first.agent)


def alternative_of(held: Held, alternatives: Sequence[Alternative]) -> Alternative:
    """Return the first alternative that requests exactly the allocated amounts; else the first of all."""
    holds: dict[str, int] = {}
    for resources in held.allocations.values():
        for name, amount in resources.items():
            holds[name] = holds.get(name, 0) + amount
    return next((each for each in alternatives if each.asked == holds), alternatives[0])


# Section: the purpose of an order. The kernel's one is to build new instances.


@dataclass(frozen=True)
class Purpose:
    """The purpose of an order decides which claims it makes, what answers mean for its instances, and how it
    ends. This one builds new instances; features derive others from it, and override what differs.
    """

    name: ClassVar[str] = "build"
    # Whether instances that get no host are retired, so that their ids cannot be claimed later. False for ids
    # of another system, which may be requested again: such orders preempt no instances.
    retires: ClassVar[bool] = True
    # Whether the instances are new ones of the request's project. Only then does the share of the project
    # decide when the request is tried, and may the instances draw from its open reservations.
    boots: ClassVar[bool] = True

    @property
    def leaves_lost_host(self) -> bool:
        """Return whether the instance leaves a host that is down: then it may draw from failover capacity."""
        return False

    @property
    def holds(self) -> Allocations:
        """Return what the order's instance holds already on the host that it leaves."""
        return {}

    def adapt(self, order: Order) -> Order:
        """Return a new order with what this purpose adds to its alternatives and times."""
        return order

    def consumers(self, order: Order) -> frozenset[Id]:
        """Return the consumers that the order replaces: they do not restrict the hosts of its instances."""
        return frozenset()

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
        content=order.content,
    )
    placed_parts = [part.placed(order.times.waiting_since) for part in request.parts]
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


# Section: places one request, as a pure state machine: state and event → next state and effects.
#
# searching ─ chosen → claiming ─ all claimed ──────→ (more alternates, if some are missing) → published ↑ └──
# no host: the next flavor; retry later; wait; or retire the instances and publish the end ├── refused: the
# reservation is released, and refused hosts are avoided └── delivered before: instances with allocations are
# located and published again, the rest continue
#
# A request is reported as unplaceable only after placement has retired its instances, so a second delivery
# cannot place an instance that has ended. The state machine waits for the result of one effect at a time.


PATIENCE = 30.0  # seconds that a request waits for a temporary obstacle
LONGEST_PAUSE = 5.0  # maximum seconds between two searches of a waiting request
SOON = 0.1, 0.5
AT_ONCE = 0.05, 0.2

Step = tuple[Order, events.Effects]


def step(order: Order, event: events.Event, patience: float) -> Step:
    """Return an order's state and effects after an event; an order older than `patience` s is not retried."""
    match event:
        case events.Started() if order.verdict.invalid:
            return _proceed(failed(order, order.verdict.invalid, Decision(code="unreadable")), patience)
        case events.Started():
            return _proceed(order, patience)
        case events.Chosen(picks=(), short=short) if short is not None:
            tried = replace(order.tried, considered=short.considered)
            return _no_host(replace(order, tried=tried), short, patience)
        case events.Chosen():
            return _chosen(order, event), (Need.CLAIMS,)
        case events.ClaimAnswers(results=results):
            return _claimed(order, results, patience)
        case events.ClaimImpossible(why=why):
            without_picks = failed(replace(order, picks=()), why, Decision(code="claim"))
            return _after(_release_picks(order), _proceed(without_picks, patience))
        case events.Located():
            return _located(order, event, patience)
        case events.Passed():
            return _without_help(order, patience)
        case events.FenceAnswers(results=fenced):
            return _fenced(order, fenced, patience)
        case events.FenceImpossible(why=why):
            return order, (events.DeadLetterRequest(why),)
        case events.HelpFound(helps=helps):
            decision = replace(order.verdict.decision, helps=helps)
            verdict = replace(order.verdict, decision=decision, lacks_remedies=False)
            return _proceed(replace(order, verdict=verdict), patience)
        case events.AlternatesFound(alternates=alternates):
            settled = [
                replace(each, alternates=(*each.alternates, *alternates.get(each.instance, ())), lacking=0)
                for each in order.settled
            ]
            return _proceed(replace(order, settled=tuple(settled)), patience)


def _proceed(order: Order, patience: float) -> Step:
    """Return an order with what it needs next, or with its end."""
    if order.found:
        return order, (Need.PLACES if order.held_before() else Need.FENCES,)
    if order.instances and order.verdict.reason:
        if order.verdict.lacks_remedies:
            return order, (Need.REMEDIES,)
        if order.purpose.retires:
            return order, (Need.FENCES,)
        without_host = [EndedInstance(instance, order.verdict.reason) for instance in order.instances]
        order = replace(order, ended=(*order.ended, *without_host), instances=())
    if order.instances:
        if order.tried.rounds < ROUNDS:
            return order, (Need.HOSTS,)
        return replace(order, verdict=replace(order.verdict, shortages=(), is_reserved=False)), (
            Need.FALLBACKS,
        )
    if any(settled.lacking for settled in order.settled):
        return order, (Need.ALTERNATES,)
    return order, (events.Publish(tuple(order.purpose.ends(order))),)


def _chosen(order: Order, event: events.Chosen) -> Order:
    tried, shortages = order.tried, order.verdict.shortages
    order = replace(
        order,
        attempt=order.attempt if event.attempt is None else event.attempt,
        picks=event.picks,
        tried=replace(tried, rounds=tried.rounds + 1, considered=event.picks[0].considered),
    )
    if shortages or event.short is not None:
        shortages = () if event.short is None else (*shortages, event.short)
        order = replace(order, verdict=replace(order.verdict, shortages=shortages))
    return order


def _no_host(order: Order, short: Shortage, patience: float) -> Step:
    """Begin the order's next attempt; after the last attempt, let the order wait, retry or fail."""
    latest = order.tried.latest_refusals
    if short.code == RULE_ERROR:  # no other flavor, preemption or wait helps
        return _proceed(failed(order, short.refusal, short.decision(latest)), patience)
    verdict = order.verdict
    if short.optional:
        verdict = replace(verdict, is_reserved=verdict.is_reserved or short.is_reserved)
    else:
        verdict = replace(verdict, shortages=(*verdict.shortages, short))
    if not order.is_last_attempt:
        return replace(order, verdict=verdict, attempt=order.attempt + 1), (Need.HOSTS,)
    order = replace(order, verdict=verdict, attempt=0)
    decision = verdict.shortages[0].decision(latest)
    order = replace(order, verdict=replace(verdict, obstacle=order.why_no_host(), decision=decision))
    return order, (Need.FALLBACKS,)


def _without_help(order: Order, patience: float) -> Step:
    """Retry an order or let it fail after all its attempts have failed, and no fallback handles it."""
    verdict = order.verdict
    if verdict.reason:  # a fallback has ended it
        return _proceed(order, patience)
    if verdict.refusal is not None:
        decision = Decision(code=verdict.refusal.code, considered=order.tried.considered)
        return _proceed(failed(order, verdict.refusal.why, decision), patience)
    return _nowhere(order, patience) if verdict.shortages else _obstructed(order, patience)


def _nowhere(order: Order, patience: float) -> Step:
    obstacle, shortages = order.verdict.obstacle, order.verdict.shortages
    is_reserved, is_searched_again = order.is_reserved, order.is_searched_again
    order = replace(
        order,
        tried=replace(order.tried, rounds=order.tried.rounds + 1),
        verdict=replace(order.verdict, shortages=(), is_reserved=False),
    )
    if not order.has_enough:
        if is_searched_again:
            return order, (Need.HOSTS,)
        # Capacity reserved for claims of other requests is free again if the claims fail.
        if is_reserved or any(short.may_pass for short in shortages):
            return _obstructed(order, patience)
    readable = not any(short.refusal for short in shortages)
    return _proceed(failed(order, obstacle, order.verdict.decision, lacks_remedies=readable), patience)


def _obstructed(order: Order, patience: float) -> Step:
    obstacle, tried = order.verdict.obstacle, order.tried
    if order.times.retried_for >= patience:
        decision = order.verdict.decision
        decision = replace(
            decision,
            considered=decision.considered or tried.considered,
            refused=tried.latest_refusals,
            code=decision.code or "refused",
        )
        order = failed(order, obstacle, decision, lacks_remedies=bool(decision.removals))
        return _proceed(order, patience)
    return order, (events.ComeAgain(*SOON, obstacle),)


def _contended(order: Order, patience: float, why: str) -> events.Effects:
    retried_for = order.times.retried_for
    if retried_for < patience:
        return (events.ComeAgain(*AT_ONCE, why),)
    waited = f"request {order.request.request} has waited {retried_for:.0f} s: {why}"
    return events.Warn(waited), events.ComeAgain(LONGEST_PAUSE, LONGEST_PAUSE, why)


def _claimed(order: Order, results: Sequence[ClaimResult], patience: float) -> Step:
    picks = order.picks
    claimed = [result for result in results if isinstance(result, Claimed)]
    if len(claimed) == len(picks):
        return _settle(order, claimed, patience)
    if fewer := _permitted(order, results):
        left_out = list(zip(order.picks, order.instances, strict=False))[fewer:]
        order = replace(order, picks=picks[:fewer])
        return order, (*(events.ReleaseHost(*pair) for pair in left_out), Need.CLAIMS)
    released, order = _release_picks(order), replace(order, picks=())
    if any(isinstance(result, Held | Retired) for result in results):
        return _after(released, _placed_before(order, results, patience))
    avoided, refusals = set(order.tried.avoided), list(order.tried.refusals)
    by_fallback, by_rules = any(pick.parts for pick in picks), list(order.tried.by_rules)
    for pick, result in zip(picks, results, strict=False):
        if isinstance(result, Contended):
            return order, (*released, *_contended(order, patience, "its claim is contended"))
        if isinstance(result, Refused):
            for refusal in _of_rules(result):
                if refusal.wakes_on:
                    verdict = replace(order.verdict, refusal=refusal, shortages=(), is_reserved=False)
                    return replace(order, verdict=verdict), (*released, Need.FALLBACKS)
                if refusal.final and by_fallback:  # only what the fallback chose cannot succeed
                    by_rules.append(refusal)
                elif refusal.final:
                    order = failed(order, refusal.why, Decision(code=refusal.code))
                    return _after(released, _proceed(order, patience))
            texts, providers = refusals_of(pick, result.refusals)
            refusals += [text for text in texts if text not in refusals]
            avoided |= providers
    tried = replace(
        order.tried,
        avoided=frozenset(avoided),
        refusals=tuple(refusals),
        refused_rounds=order.tried.refused_rounds + 1,
        by_rules=tuple(by_rules),
    )
    obstacle = f"every host that would do was refused when it was claimed: {'; '.join(tried.latest_refusals)}"
    verdict = replace(order.verdict, obstacle=obstacle, shortages=(), is_reserved=False)
    return _after(released, _proceed(replace(order, attempt=0, tried=tried, verdict=verdict), patience))


def _of_rules(result: Refused) -> list[RuleRefused]:
    return [refusal for refusal in result.refusals if isinstance(refusal, RuleRefused)]


def _permitted(order: Order, results: Sequence[ClaimResult]) -> int:
    """Return how many of the chosen instances could be claimed without the others, if fewer instances are
    enough (`at_least`), and the others were refused only by rules that may permit them later; else 0.
    """
    if not order.request.at_least or order.picks[0].scope.jointly is not None:
        return 0
    refused = [result for result in results if isinstance(result, Refused)]
    refusals = [refusal for result in refused for refusal in result.refusals]
    passing = [refusal for refusal in refusals if isinstance(refusal, RuleRefused) and refusal.wakes_on]
    if not passing or len(passing) < len(refusals) or len(refused) < len(results):
        return 0
    most = sum(1 for _ in takewhile(lambda result: not result.refusals, refused))
    return most if order.needed <= most < len(order.picks) else 0


def _release_picks(order: Order) -> events.Effects:
    return tuple([events.ReleaseHost(*pair) for pair in zip(order.picks, order.instances, strict=False)])


def _after(before: events.Effects, step_: Step) -> Step:
    """Return a step whose effects follow the effects `before`."""
    order, effects = step_
    return order, (*before, *effects)


def _placed_before(order: Order, results: Sequence[ClaimResult], patience: float) -> Step:
    """Continue an order without the instances that hold allocations already or have ended, according to
    placement's answers to their claims (`results`).
    """
    answered = list(zip(order.instances, results, strict=False))
    left = [instance for instance, result in answered if not isinstance(result, Held | Retired)]
    order = replace(
        order,
        attempt=0,
        instances=(*left, *order.instances[len(results) :]),
        verdict=replace(
            order.verdict,
            obstacle="its other instances were placed or ended before",
            shortages=(),
            is_reserved=False,
        ),
    )
    for instance, result in answered:
        if isinstance(result, Held | Retired):
            answer = order.purpose.claim_answered(order, instance, result, patience)
            if isinstance(answer, events.ComeAgain):
                return order, (answer,)
            order = answer
    return _proceed(order, patience)


def _settle(order: Order, claimed: Sequence[Claimed], patience: float) -> Step:
    picks, request = order.picks, order.request
    ways = [pick.choices[result.choice] for pick, result in zip(picks, claimed, strict=True)]
    avoided, refusals = set(order.tried.avoided), list(order.tried.refusals)
    settled = [*order.settled]
    effects: list[events.Effect] = []
    asked = further_constraints(request)
    for instance, pick, way, result in zip(order.instances, picks, ways, claimed, strict=False):
        if result.refused:
            texts, providers = refusals_of(pick, result.refused)
            refusals += texts
            avoided |= providers
        alternates, lacking = pick.alternates, 0
        if result.choice or avoided or len(picks) > 1:
            excluding = order.settled_roots.union([candidate.root for candidate in ways])
            if pick.scope.jointly is not None:  # alternates may be hosts of its other instances
                excluding = frozenset({way.root})
            alternates = usable_alternates(pick, way, excluding, avoided, order.alternates)
            if result.choice or len(alternates) < len(pick.alternates):
                lacking = order.alternates - len(alternates)
        alternative = order.alternative_for(instance)
        if pick.parts or pick.scope.optional:
            lacking = order.alternates
        settled.append(
            Settled(
                instance=instance,
                cell=way.cell,
                chosen=selection_of(way),
                generation=result.generation,
                decision=pick.decision(way.root, tuple(refusals[-16:]), asked),
                alternative=alternative,
                alternates=alternates,
                lacking=lacking,
                parts=pick.parts,
            )
        )
        effects.append(events.ReserveHost(pick, way, result.number, instance))
    shortages = order.verdict.shortages
    order = replace(order, instances=order.instances[len(picks) :], picks=(), settled=tuple(settled))
    if avoided or refusals:
        tried = replace(order.tried, avoided=frozenset(avoided), refusals=tuple(refusals))
        order = replace(order, tried=tried)
    if order.instances and shortages:  # instances without a host try the next flavor
        *earlier, last = shortages
        order = replace(order, verdict=replace(order.verdict, shortages=tuple(earlier)))
        return _after(tuple(effects), _no_host(order, last, patience))
    return _after(tuple(effects), _proceed(order, patience))


def _located(order: Order, event: events.Located, patience: float) -> Step:
    """Publish again the results of instances that already hold a host, with newly chosen alternates."""
    effects: list[events.Effect] = []
    held_earlier, order = order.held_before(), replace(order, found=order.released_elsewhere())
    for instance, held in held_earlier:
        match order.purpose.located(order, instance, held, event.providers):
            case Settled(chosen=chosen, alternative=alternative) as settled:
                if alternative is not None:
                    holds = chosen.choice.allocations
                    mappings = event.mappings(alternative.question, chosen.root, holds)
                    chosen = replace(chosen, mappings=mappings)
                settled = replace(settled, chosen=chosen, parts=event.parts.get(instance, ()))
                order = replace(order, settled=(*order.settled, settled))
            case EndedInstance(reason=why):
                effects.append(events.Warn(f"build {instance}: {why}"))
                order = with_ended(order, instance, why)
            case events.ComeAgain() as retry:
                return order, (retry,)
    return _after(tuple(effects), _proceed(order, patience))


def _fenced(order: Order, results: Sequence[tuple[Id, ReleaseResult]], patience: float) -> Step:
    released = {instance for instance, _ in order.released_elsewhere()}
    left = tuple([instance for instance in order.instances if instance not in dict(results)])
    order = replace(order, found=(), instances=left)
    effects: list[events.Effect] = []
    for instance, result in results:
        match result:
            case Released() if instance in released:
                effects.append(events.Warn(f"build {instance}: {why_released(instance)}"))
                order = with_ended(order, instance, why_released(instance))
            case Released():
                order = with_ended(order, instance, order.verdict.reason)
            case Retired():
                order = order.purpose.retire_answered(order, instance, result)
            case Held() if instance not in released:
                order = order.purpose.retire_answered(order, instance, result)
            case _:
                contended = _contended(order, patience, f"the claim of {instance} is contended")
                return order, (*effects, *contended)
    return _after(tuple(effects), _proceed(order, patience))
