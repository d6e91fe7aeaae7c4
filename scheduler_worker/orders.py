"""Converts requests to orders: parses equal requests once, and reads the server groups and instances that
they name before the search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.context import sent_at
from bus.errors import AnswerRefused, Retry
from bus.groups import FindGroups, ServerGroup
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.vocabulary import Id
from scheduler_worker.core.attributes import RequestOptions, Unreadable
from scheduler_worker.core.build_purpose import BUILD
from scheduler_worker.core.build_specs import size_of, too_much
from scheduler_worker.core.events import Chosen, Located, NoVictims
from scheduler_worker.core.order import Order, Times, Verdict, attempts_of
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.request import Prefilters, alternatives_of, prefilters
from scheduler_worker.core.roles import group_id, own_group
from scheduler_worker.core.rule import ITS_OWN, Alternative, as_anybodys
from scheduler_worker.dependencies import Ending
from scheduler_worker.extension import Purpose
from scheduler_worker.queries import PlacementQueries

MORE_WHEN_PACKED = 4  # additional alternates if weighers prefer full hosts, which are soon full
BATCH_BYTES = 16 * 1024 * 1024  # bytes of flavors, images and metadata in a batch, or one request
REMEMBERED = 4096  # different requests whose parsed form is cached
REMEMBERED_BYTES = 32 * 1024 * 1024  # bytes of all cached requests
# Fields that most policies do not read: then requests that differ only in these fields are equal.
_SELDOM_READ: Mapping[str, Any] = {"metadata": {}, "name": "", "user": ""}

_encode = msgspec.json.Encoder(order="deterministic").encode


class Preempting(Protocol):
    """Finds instances of lower priority that are deleted so that an order fits."""

    def permits(self, request: BuildRequested) -> bool: ...

    def permitted(self, orders: Sequence[Order]) -> Sequence[Order]: ...

    async def of_located(self, order: Order, located: Located) -> Located: ...

    async def find_each(self, orders: Sequence[Order]) -> Sequence[Chosen | NoVictims]: ...


class Orders:
    """Makes orders from requests; caches the parsed requests until hosts are added or removed."""

    def __init__(self, source: CandidateSource, options: RequestOptions, policy: ChoicePolicy) -> None:
        self.options = options
        self._source = source
        self._options = options
        self._policy = policy
        unread = {name: none for name, none in _SELDOM_READ.items() if not self._policy.reads(name)}
        self._apart = {**ITS_OWN, **unread}
        self._known: dict[tuple[bytes, object], tuple[tuple[Alternative, ...], ...]] = {}
        self._bytes = 0  # size of the cached requests
        self._layout = -1
        self._prefilters: Prefilters | None = None

    def follow(self) -> "Orders":
        """Subscribe to changes of the index, so that limits set by aggregates and cells stay current; return
        `self`. An object for a single what-if question need not subscribe.
        """
        self._source.watch(self._received)
        return self

    def _received(self, roots: Sequence[str], described: Sequence[str]) -> None:
        if described:
            self._prefilters = None

    def begin(self, request: BuildRequested, retried_for: float, purpose: Purpose = BUILD) -> Order:
        """Return the order for a request. `retried_for` has the seconds since the request's first retry."""
        size = size_of(request)
        instances = tuple(dict.fromkeys(request.instances))
        together = size * len(instances)
        invalid = too_much(request, size, together)
        attempts: tuple[tuple[Alternative, ...], ...] = ()
        if not invalid:
            try:
                attempts = self._attempts(request)
            except Unreadable as problem:
                invalid = str(problem)
        more = MORE_WHEN_PACKED if self._policy.packs and request.alternates else 0
        order = Order(
            request=request,
            attempts=attempts,
            instances=instances,
            size=0 if invalid else together,
            purpose=purpose,
            alternates=request.alternates + more,
            verdict=Verdict(invalid=invalid) if invalid else Verdict(),
            times=Times(requested=sent_at(request), retried_for=retried_for),
        )
        return purpose.adapt(order)

    def names_unknown(self, request: BuildRequested) -> bool:
        if not (request.forced_host or request.wanted_host or request.ignore_hosts):
            return False
        named = (request.forced_host, request.wanted_host, *request.ignore_hosts)
        return any(host and not self._source.named(host) for host in named)

    def again(self, order: Order) -> Order:
        """Return a waiting request's order with its search updated for the present aggregates, cells and
        excluded hosts."""
        if order.verdict.invalid:
            return self.begin(order.request, order.times.retried_for, order.purpose)
        try:
            anew = self._attempts(order.request)
        except Unreadable:  # a host that the request names was deleted since it was parsed
            return order
        # `order` has all attempts once for each reservation
        repeated = anew * (len(order.attempts) // len(anew))
        attempts = [
            tuple([_updated(*pair) for pair in zip(attempt, now, strict=True)])
            for attempt, now in zip(order.attempts, repeated, strict=True)
        ]
        return msgspec.structs.replace(order, attempts=tuple(attempts))

    def _attempts(self, request: BuildRequested) -> tuple[tuple[Alternative, ...], ...]:
        source, narrowing = self._source, self._prefilters
        if narrowing is None:
            aggregates, cells = source.aggregates.values(), source.cells.values()
            narrowing = self._prefilters = prefilters(aggregates, self._options, cells)
            self._forget()
        if self._layout != source.layout or len(self._known) > REMEMBERED or self._bytes > REMEMBERED_BYTES:
            self._layout = source.layout
            self._forget()
        named = request.hints.same_host or request.hints.different_host
        instances = request.instances if named else len(request.instances)
        alike = _encode(msgspec.structs.replace(request, **self._apart)), instances
        known = self._known.get(alike)
        if known is None:
            alternatives = alternatives_of(
                request, self._options, source.named, lambda: {host.host for host in source.hosts()}
            )
            unheeded, anybodys = self._policy.unheeded(request), as_anybodys(request)
            narrowed = [
                narrowing.narrow(replace(each, request=anybodys, notes=(*each.notes, *unheeded)))
                for each in alternatives
            ]
            known = attempts_of(request, narrowed)
            self._known[alike] = known
            self._bytes += len(alike[0])
        return known

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0


def _updated(alternative: Alternative, now: Alternative) -> Alternative:
    """Return an alternative with the aggregates, cells and excluded hosts of the same alternative `now`."""
    question, draw = _renewed(alternative.question, now), alternative.draw
    if draw is not None:
        draw = replace(draw, question=_renewed(draw.question, now))
    return replace(alternative, question=question, draw=draw, notes=now.notes)


def _renewed(question: FindCandidates, now: Alternative) -> FindCandidates:
    return msgspec.structs.replace(
        question,
        not_roots=tuple(sorted({*question.not_roots, *now.question.not_roots})),
        root_member_of=now.question.root_member_of,
        root_not_member_of=now.question.root_not_member_of,
        not_cells=now.question.not_cells,
    )


def postponed(orders: Sequence[Order], clock: Clock) -> list[Retry | None]:
    """Return a `Retry` for each order with which a batch of requests would exceed BATCH_BYTES, else None."""
    bytes_left, later = BATCH_BYTES, list[Retry | None]()
    for order in orders:
        if order.size > bytes_left and bytes_left < BATCH_BYTES:
            after = clock.chance.uniform(0.1, 0.5)
            later.append(Retry(after=after, why="other large requests go first"))
        else:
            bytes_left -= order.size
            later.append(None)
    return later


@dataclass(frozen=True)
class Resolving:
    """Reads the server groups and instances that requests name, with one query for all requests. If placement
    refuses it, half of the requests are queried at a time, and so on down to single requests.
    """

    placement: PlacementQueries
    ending: Ending

    async def resolve(self, orders: Sequence[Order]) -> list[Order]:
        if not any(names_other_instances(order.request) for order in orders):
            return list(orders)
        try:
            return await self._together(orders)
        except AnswerRefused as problem:
            if len(orders) == 1:
                [order] = orders
                return [order.with_invalid(f"hints: placement cannot find what they name: {problem}")]
        middle = len(orders) // 2
        return [*await self.resolve(orders[:middle]), *await self.resolve(orders[middle:])]

    async def _together(self, orders: Sequence[Order]) -> list[Order]:
        valid = [order for order in orders if not order.verdict.invalid]
        ids = tuple(dict.fromkeys(group for order in valid if (group := group_id(order.request))))
        found = (await self.placement.groups(FindGroups(ids=ids))).groups if ids else ()
        groups = {group.id: group for group in found}
        on: dict[Id, str] = {}
        if named := dict.fromkeys(
            instance_id
            for order in valid
            for hints in (order.request.hints,)
            for instance_id in (*hints.same_host, *hints.different_host, *order.purpose.outside_members)
        ):
            on = await self.ending.hosts_of(named)
        return [order if order.verdict.invalid else self._resolved(order, groups, on) for order in orders]

    def _resolved(self, order: Order, groups: dict[Id, ServerGroup], on: dict[Id, str]) -> Order:
        hints, request = order.request.hints, order.request
        if request.topology.levels:
            own = own_group(request, groups.get(group_id(request) or ""))
            order = order.with_alternatives(group=own)
        elif hints.group is not None:
            group = groups.get(hints.group)
            if group is None or group.project != request.project:
                why = f"hints.group: there is no server group {hints.group} in this project"
                return order.with_invalid(why)
            order = order.with_alternatives(group=_with_other_members(order, group, on))
        if hints.same_host or hints.different_host:
            same, different = (
                frozenset(on[instance] for instance in named if instance in on)
                for named in (hints.same_host, hints.different_host)
            )
            order = order.with_alternatives(same=same if hints.same_host else None, different=different)
        return order


def _with_other_members(order: Order, group: ServerGroup, on: Mapping[Id, str]) -> ServerGroup:
    """Return a server group with the members that count for an order; `on` has the hosts of instances."""
    outside, own = order.purpose.outside_members, order.purpose.consumers(order)
    if not outside and not own:
        return group
    known = {**{id_: (on[id_],) for id_ in outside if id_ in on}, **group.members}
    return msgspec.structs.replace(
        group,
        members={id_: roots for id_, roots in known.items() if id_ not in own},
        left={id_: roots for id_, roots in group.left.items() if id_ not in own},
    )


def names_other_instances(request: BuildRequested) -> bool:
    hints = request.hints
    named = hints.group or hints.same_host or hints.different_host or hints.reservation
    return bool(named or request.topology.levels)
