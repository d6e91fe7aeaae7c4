"""The size of requests: which fraction of the cloud's capacity their instances take."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec import structs

from bus import parts
from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.errors import NOT_JSON, Unavailable, Undecodable
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.reading import read
from bus.requests import ResourceGroup
from features.waiting.core.shares import Size
from scheduler_worker.extension import Orders, sections_of

RECENT = 30.0  # seconds after which cached capacities and sizes are computed again
SOON = 1.0  # the same, if a class has no capacity
MOST_KNOWN = 1000

_encode = parts.encoder().encode
_NOTHING = msgspec.Raw(b"")


@cache
def _alike() -> Callable[[msgspec.Raw], Any]:
    """Return a function that decodes the fields of a request that may decide its size: encoded, except the
    instances, which come first. For requests with equal fields, the size is computed once.
    """
    names = ("image", "groups", "parts", *parts.TYPES.flat_parts(parts.RequestParts))
    fields = [("instances", tuple[msgspec.Raw, ...]), ("flavor", msgspec.Raw)]
    optional = [(name, msgspec.Raw, _NOTHING) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Alike", [*fields, *optional])).decode


class RequestSizes:
    """Computes the sizes of encoded requests from the capacities in placement's index."""

    def __init__(self, orders: Orders, source: CandidateSource, clock: Clock) -> None:
        self._orders = orders
        self._source = source
        self._clock = clock
        self._capacities: dict[str, float] = {}
        self._known: dict[tuple[int | bytes, ...], Size] = {}
        self._until = 0.0

    def of_request(self, request: BuildRequested) -> Size:
        return self.of(msgspec.Raw(_encode(request)))

    def of(self, body: msgspec.Raw) -> Size:
        """Return the size of a request, as fractions of the cloud's capacity by resource class. Classes that
        no host has are left out; the result is empty if the request is invalid, or the index is not loaded.
        """
        if self._until <= self._clock.monotonic() or len(self._known) + len(self._capacities) > MOST_KNOWN:
            self._capacities.clear()
            self._known.clear()
            self._until = self._clock.monotonic() + RECENT
        try:
            instances, *encoded = structs.astuple(_alike()(body))
            key: tuple[int | bytes, ...] = (len(instances), *map(bytes, encoded))
            size = self._known.get(key, {})
            if not size and (size := self._computed(read(BuildRequested, body))):
                self._known[key] = size
        except (*NOT_JSON, Undecodable, Unavailable):
            return {}
        return size

    def _computed(self, request: BuildRequested) -> Size:
        order, amounts = self._orders.begin(request, 0.0), Counter[str]()
        for section in sections_of(request, order.attempts[0], request.instances) if order.attempts else ():
            for name, amount in section.alternative.asked.items():
                amounts[name] += amount * len(section.instances)
        capacities = {name: self._capacity(name) for name in amounts}
        return {name: amount / capacities[name] for name, amount in amounts.items() if capacities[name]}

    def _capacity(self, resource_class: str) -> float:
        capacity = self._capacities.get(resource_class)
        if capacity is None:
            group = ResourceGroup(resources={resource_class: 1})
            found = self._source.search(FindCandidates(groups=(group,)), empty=True)
            capacity = self._capacities[resource_class] = float(found.capacity(resource_class).sum())
            if not capacity:  # perhaps the inventories arrive in these seconds
                self._until = min(self._until, self._clock.monotonic() + SOON)
        return capacity
