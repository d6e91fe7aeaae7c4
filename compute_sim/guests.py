"""The guests of a simulated agent's hosts, and the images that were left in their caches."""

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field

from bus.messages import BuildOrdered

MAX_CACHED = 16  # images a host keeps, the one used last the longest
MAX_PROPERTIES = 32  # of one image that a host tells of


@dataclass(eq=False)
class HostGuests:
    """What one host has of them."""

    instances: int = 0
    images: OrderedDict[str, None] = field(default_factory=OrderedDict)  # cached, used last at the end
    properties: Counter[str] = field(default_factory=Counter)  # NAME=VALUE of the images of its instances


class Guests:
    """By build and attempt: on which root each is, and of which image."""

    def __init__(self) -> None:
        self.there: dict[str, dict[int, str]] = {}
        self.on: defaultdict[str, HostGuests] = defaultdict(HostGuests)
        self._properties: dict[tuple[str, int], tuple[str, ...]] = {}

    def add(self, order: BuildOrdered) -> None:
        attempts = self.there.setdefault(order.build, {})
        if order.attempt in attempts:
            return
        attempts[order.attempt] = order.root
        host, image = self.on[order.root], order.spec.image
        host.instances += 1
        if image is None:
            return
        host.images[image.name] = None
        host.images.move_to_end(image.name)
        if len(host.images) > MAX_CACHED:
            host.images.popitem(last=False)
        told = tuple(f"{name}={value}" for name, value in list(image.properties.items())[:MAX_PROPERTIES])
        if told:
            self._properties[order.build, order.attempt] = told
            host.properties.update(told)

    def remove(self, build: str, attempts: range) -> None:
        there = self.there.get(build, {})
        for attempt in [attempt for attempt in there if attempt in attempts]:
            host = self.on[there.pop(attempt)]
            host.instances -= 1
            for one in self._properties.pop((build, attempt), ()):
                host.properties[one] -= 1
                if not host.properties[one]:
                    del host.properties[one]
        if not there:
            self.there.pop(build, None)
