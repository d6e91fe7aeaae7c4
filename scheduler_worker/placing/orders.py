"""Converts requests to orders: parses equal requests once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from bus import parts
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.context import sent_at
from bus.errors import Retry
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.repetitions import scheme_of
from scheduler_worker.core.build_specs import MAX_SPEC_BYTES, size_of, too_much
from scheduler_worker.core.order import BUILD, Order, Purpose, Times, Verdict, attempts_of
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.prefilters import Prefilters, prefilters
from scheduler_worker.core.request import RequestOptions, alternatives_of
from scheduler_worker.core.rule import ITS_OWN, Alternative, as_anybodys
from scheduler_worker.core.spec_values import Unreadable

MORE_WHEN_PACKED = 4  # additional alternates if weighers prefer full hosts, which are soon full
BATCH_BYTES = 16 * 1024 * 1024  # bytes of flavors, images and metadata in a batch, or one request
REMEMBERED = 4096  # different requests whose parsed form is cached
REMEMBERED_BYTES = 32 * 1024 * 1024  # bytes of all cached requests
# Fields that most policies do not read: then requests that differ only in these fields are equal.
_SELDOM_READ: Mapping[str, Any] = {"metadata": {}, "name": "", "user": ""}

_encode = parts.encoder(order="deterministic").encode


class _Read(NamedTuple):
    """The part of the reading of a request that equal requests share."""

    attempts: tuple[tuple[Alternative, ...], ...]
    content: str  # the start of the digests of their contents


class Orders:
    """Makes orders from requests; caches the parsed requests until hosts are added or removed."""

    def __init__(self, source: CandidateSource, options: RequestOptions, policy: ChoicePolicy) -> None:
        self.options = options
        self._source = source
        self._options = options
        self._policy = policy
        unread = {name: none for name, none in _SELDOM_READ.items() if not self._policy.reads(name)}
        self._apart = {**ITS_OWN, **unread}
        self._scheme = scheme_of(*unread)  # requests are read alike by all schedulers with these fields
        self._known: dict[tuple[bytes, object], _Read] = {}
        self._bytes = 0  # size of the cached requests
        self._layout = -1
        self._prefilters: Prefilters | None = None

    def follow(self) -> "Orders":
        """Subscribe to changes of the index, so that limits set by aggregates and cells stay current; return
        `self`. An object for a single question need not subscribe.
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
        common = ""
        if not invalid:
            try:
                attempts, common = self._read(request)
            except Unreadable as problem:
                invalid = str(problem)
        more = MORE_WHEN_PACKED if self._policy.packs and request.alternates else 0
        order = Order(
            request=request,
            attempts=attempts,
            instances=instances,
            purpose=purpose,
            alternates=request.alternates + more,
            verdict=Verdict(invalid=invalid) if invalid else Verdict(),
            times=Times(
                requested=sent_at(request), retried_for=retried_for, waiting_since=purpose.waiting_since
            ),
            content=_content(common or self._digest_of(request), request),
        )
        if not (purpose.is_external or purpose.current_roots):
            return order
        return order.with_alternatives(is_external=purpose.is_external, current_roots=purpose.current_roots)

    def alternatives_of(self, request: BuildRequested) -> Sequence[Alternative]:
        """Return the flavors and page sizes to try for a request, best first; empty if it is invalid."""
        return self.begin(request, 0.0).alternatives

    def names_unknown(self, request: BuildRequested) -> bool:
        """Return whether the request forces, wants or excludes a host that the replica of placement does not
        know yet.
        """
        if not (request.forced_host or request.wanted_host or request.ignore_hosts):
            return False
        named = (request.forced_host, request.wanted_host, *request.ignore_hosts)
        return any(host and not self._source.named(host) for host in named)

    def again(self, order: Order) -> Order:
        """Return a waiting request's order with its search updated for the present aggregates, cells and
        excluded hosts."""
        if order.verdict.invalid:
            begun = self.begin(order.request, order.times.retried_for, order.purpose)
            return msgspec.structs.replace(begun, times=order.times, parts=order.parts)
        try:
            anew = self._read(order.request).attempts
        except Unreadable:  # a host that the request names was deleted since it was parsed
            return order
        # `order` has all attempts once for each reservation
        repeated = anew * (len(order.attempts) // len(anew))
        attempts = [
            tuple([_updated(*pair) for pair in zip(attempt, now, strict=True)])
            for attempt, now in zip(order.attempts, repeated, strict=True)
        ]
        return msgspec.structs.replace(order, attempts=tuple(attempts))

    def _read(self, request: BuildRequested) -> _Read:
        """Return the attempts of a request; requests that differ only by ids and times are read once."""
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
            known = _Read(attempts_of(request, narrowed), self._digest_of(request))
            self._known[alike] = known
            self._bytes += len(alike[0])
        return known

    def _digest_of(self, request: BuildRequested) -> str:
        """Return the start of the digest of a request's content: equal requests have the same one. It stays
        the same if some instances of a waiting request end.
        """
        encoded = _encode(msgspec.structs.replace(request, **self._apart, at_least=0))
        return f"{self._scheme}{blake2b(encoded, digest_size=8).hexdigest()}"

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0


def _content(common: str, request: BuildRequested) -> str:
    """Return the digest of a request's content, given what it has in common with equal requests."""
    further = f"{request.user} {request.name}".encode()
    if request.metadata:
        further += _encode(request.metadata)
    return f"{common}{crc32(further):08x}"


def _updated(alternative: Alternative, now: Alternative) -> Alternative:
    """Return an alternative with the aggregates, cells and excluded hosts of the same alternative `now`."""
    renew, restriction = partial(_renewed, now=now), alternative.restriction
    return replace(
        alternative,
        question=renew(alternative.question),
        restriction=None if restriction is None else restriction.renewed(renew),
        notes=now.notes,
    )


def _renewed(question: FindCandidates, now: Alternative) -> FindCandidates:
    """Return a question with the present limits by aggregates and cells."""
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
    if sum([len(order.instances) for order in orders]) * MAX_SPEC_BYTES <= BATCH_BYTES:
        return [None] * len(orders)
    for order in orders:
        size = 0 if order.verdict.invalid else size_of(order.request) * len(order.instances)
        if size > bytes_left and bytes_left < BATCH_BYTES:
            after = clock.chance.uniform(0.1, 0.5)
            later.append(Retry(after=after, why="other large requests go first"))
        else:
            bytes_left -= size
            later.append(None)
    return later


Asked = tuple[BuildRequested, Purpose]
