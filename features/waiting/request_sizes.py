"""The size of requests: which fraction of the cloud's capacity their instances take."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from msgspec import structs

from bus import parts
from bus.candidates import CandidateSource, SenselessQuery
from bus.clock import Clock
from bus.errors import NOT_JSON, Unavailable, Undecodable
from bus.invalid_requests import read
from bus.messages import BuildRequested
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from features.waiting.core.fair_queue import requested_amounts
from features.waiting.core.shares import Size

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
    names = ("groups", "parts", *parts.TYPES.flat_parts(parts.RequestParts))
    fields = [("instances", tuple[msgspec.Raw, ...]), ("flavor", msgspec.Raw)]
    optional = [(name, msgspec.Raw, _NOTHING) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Alike", [*fields, *optional])).decode


class RequestSizes:
    """Computes the sizes of encoded requests from the capacities in placement's index."""

    def __init__(self, source: CandidateSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._capacities: dict[str, float] = {}
        self._known: dict[tuple[int | bytes, ...], Size] = {}
        self._until = 0.0

    def of_request(self, request: BuildRequested) -> Size:
        return self.of(msgspec.Raw(_encode(request)))

    def of(self, body: msgspec.Raw) -> Size:
        """Return the size of a request, as fractions of the cloud's capacity by resource class. Classes that
        no host has are left out; the result is empty if the request is unreadable.
        """
        if self._until <= self._clock.monotonic() or len(self._known) + len(self._capacities) > MOST_KNOWN:
            self._capacities.clear()
            self._known.clear()
            self._until = self._clock.monotonic() + RECENT
        try:
            instances, *encoded = structs.astuple(_alike()(body))
            key: tuple[int | bytes, ...] = (len(instances), *map(bytes, encoded))
            size = self._known.get(key)
            if size is None:
                size = self._known[key] = self._computed(read(BuildRequested, body))
        except (*NOT_JSON, Undecodable):
            return {}
        return size

    def _computed(self, request: BuildRequested) -> Size:
        amounts = {name: amount for name, amount in requested_amounts(request).items() if amount}
        capacities = {name: self._capacity(name) for name in amounts}
        return {name: amount / capacities[name] for name, amount in amounts.items() if capacities[name]}

    def _capacity(self, resource_class: str) -> float:
        capacity = self._capacities.get(resource_class)
        if capacity is None:
            group = ResourceGroup(resources={resource_class: 1})
            try:
                found = self._source.search(FindCandidates(groups=(group,)), empty=True)
                capacity = float(found.capacity(resource_class).sum())
            except (SenselessQuery, Unavailable):  # no host has the class, or the index is not loaded yet
                return 0.0
            self._capacities[resource_class] = capacity
            if not capacity:  # perhaps the inventories arrive in these seconds
                self._until = min(self._until, self._clock.monotonic() + SOON)
        return capacity
