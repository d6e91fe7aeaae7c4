"""Convert requests to orders: equal requests share their parsed alternatives."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.errors import Retry
from bus.messages import BuildRequested
from scheduler_worker.core.events import Begun
from scheduler_worker.core.extra_specs import RequestOptions, Unreadable
from scheduler_worker.core.move_start import MoveStart
from scheduler_worker.core.order import Order, size_of, too_much
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.request import Prefilters, alternatives_of, prefilters
from scheduler_worker.core.rule import ITS_OWN, Alternative, as_anybodys

MORE_WHEN_PACKED = 4  # additional alternates while packing, because the next best hosts fill up soon
BATCH_BYTES = 16 * 1024 * 1024  # flavors, images and metadata in a batch; a single request is always accepted
REMEMBERED = 4096  # of the alternatives of distinct requests
REMEMBERED_BYTES = 32 * 1024 * 1024  # total size of remembered requests
_SELDOM_READ: Mapping[str, Any] = {
    "metadata": {},
    "name": "",
    "user": "",
}  # so most often two that differ in it are alike

_encode = msgspec.json.Encoder(order="deterministic").encode


class Orders:
    """Makes them. What it remembers holds until hosts come or go."""

    def __init__(self, source: CandidateSource, options: RequestOptions, policy: ChoicePolicy) -> None:
        self._source = source
        self._options = options
        self._policy = policy
        unread = {name: none for name, none in _SELDOM_READ.items() if not self._policy.reads(name)}
        self._apart = {**ITS_OWN, **unread}
        self._known: dict[tuple[bytes, object], tuple[Alternative, ...]] = {}
        self._bytes = 0  # size of the remembered requests
        self._layout = -1
        self._prefilters: Prefilters | None = None
        source.watch(self._heard)

    def _heard(self, roots: Sequence[str], described: Sequence[str]) -> None:
        if described:
            self._prefilters = None

    def begin(
        self, request: BuildRequested, waited: float, move: MoveStart | None = None
    ) -> tuple[Order, Begun]:
        """Return the order of a request, or of what a move requires of hosts."""
        size = size_of(request)
        instances = tuple(dict.fromkeys(request.instances))
        together = size * len(instances)
        refusal = too_much(request, size, together)
        alternatives: tuple[Alternative, ...] = ()
        if not refusal:
            try:
                alternatives = self._alternatives(request)
            except Unreadable as problem:
                refusal = str(problem)
        if move is not None:
            alternatives = tuple([replace(alternative, own=move.own) for alternative in alternatives])
        order = Order(
            request=request,
            alternatives=alternatives,
            instances=instances,
            bytes=0 if refusal else together,
            more_alternates=MORE_WHEN_PACKED if self._policy.packs else 0,
            waited=waited,
            move=move,
        )
        return order, Begun(refusal)

    def names_unknown(self, request: BuildRequested) -> bool:
        if not (request.forced_host or request.wanted_host or request.ignore_hosts):
            return False
        named = (request.forced_host, request.wanted_host, *request.ignore_hosts)
        return any(host and not self._source.named(host) for host in named)

    def again(self, order: Order) -> Order:
        """Return the order with the present state of hosts, aggregates and cells."""
        try:
            anew = self._alternatives(order.request)
        except Unreadable:  # a host that it names was deleted in the meantime
            return order
        alternatives = []
        for alternative, now in zip(order.alternatives, anew, strict=True):
            question = msgspec.structs.replace(
                alternative.question,
                not_roots=tuple(sorted({*alternative.question.not_roots, *now.question.not_roots})),
                root_member_of=now.question.root_member_of,
                root_not_member_of=now.question.root_not_member_of,
                not_cells=now.question.not_cells,
            )
            alternatives.append(replace(alternative, question=question, notes=now.notes))
        return msgspec.structs.replace(order, alternatives=tuple(alternatives))

    def _alternatives(self, request: BuildRequested) -> tuple[Alternative, ...]:
        source, narrowing = self._source, self._prefilters
        if narrowing is None:
            narrowing = self._prefilters = prefilters(
                source.aggregates.values(), self._options, source.cells.values()
            )
            self._forget()
        if self._layout != source.layout or len(self._known) > REMEMBERED or self._bytes > REMEMBERED_BYTES:
            self._layout = source.layout
            self._forget()
        alike = self._alike(request)
        known = self._known.get(alike)
        if known is None:
            alternatives = alternatives_of(
                request, self._options, source.named, lambda: {host.host for host in source.hosts()}
            )
            unheeded = self._policy.unheeded(request)
            if unheeded:
                alternatives = tuple(
                    replace(alternative, notes=(*alternative.notes, *unheeded))
                    for alternative in alternatives
                )
            anybodys = as_anybodys(request)
            known = tuple(
                [narrowing.narrow(replace(alternative, request=anybodys)) for alternative in alternatives]
            )
            self._known[alike] = known
            self._bytes += len(alike[0])
        return known

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0

    def _alike(self, request: BuildRequested) -> tuple[bytes, object]:
        named = request.hints.same_host or request.hints.different_host
        instances = request.instances if named else len(request.instances)
        return _encode(msgspec.structs.replace(request, **self._apart)), instances


def put_off(orders: Sequence[Order], clock: Clock) -> list[Retry | None]:
    """Postpone orders whose messages would exceed the process's memory limit."""
    room, later = BATCH_BYTES, list[Retry | None]()
    for order in orders:
        if order.bytes > room and room < BATCH_BYTES:
            after = clock.chance.uniform(0.1, 0.5)
            later.append(Retry(after=after, why="other large requests go first"))
        else:
            room -= order.bytes
            later.append(None)
    return later
