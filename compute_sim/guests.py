"""The guests of a simulated agent's hosts, and the images that were left in their caches."""

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field

import msgspec

from bus.build_orders import allocations_of
from bus.messages import BuildOrdered
from bus.moves import MoveOrdered
from bus.requests import BuildSpec
from bus.vocabulary import Allocations, Compact
from compute_sim.core.phases import GuestState

MAX_CACHED = 16  # images a host keeps, the one used last the longest
MAX_PROPERTIES = 32  # of one image that a host tells of


class GuestRecord(Compact, frozen=True):
    """A guest that is there: where, with what, and of which image."""

    build: str
    attempt: int
    cell: str
    agent: str
    root: str
    host: str
    allocations: Allocations
    mappings: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    image: str = ""
    properties: tuple[str, ...] = ()  # NAME=VALUE of its image
    state: GuestState = "running"


def guest_of(order: BuildOrdered | MoveOrdered) -> GuestRecord:
    """As it is while it is made, or awaited."""
    return GuestRecord(
        order.build,
        order.attempt,
        order.cell,
        order.agent,
        order.root,
        order.host,
        allocations_of(order),
        order.mappings,
        *image_of(order.spec),
        "arriving",
    )


def image_of(spec: BuildSpec) -> tuple[str, tuple[str, ...]]:
    """Its name, and what is said of it."""
    if spec.image is None:
        return "", ()
    some = list(spec.image.properties.items())[:MAX_PROPERTIES]
    return spec.image.name, tuple(f"{name}={value}" for name, value in some)


@dataclass(eq=False)
class HostGuests:
    """What one host has of them."""

    instances: int = 0
    changes: int = 0  # of what is told of it here, ever
    images: OrderedDict[str, None] = field(default_factory=OrderedDict)  # cached, used last at the end
    properties: Counter[str] = field(default_factory=Counter)  # NAME=VALUE of the images of its instances
    there: dict[tuple[str, int], GuestRecord] = field(default_factory=dict)  # by build and attempt


class Guests:
    """By build and attempt: on which root each is, and of which image."""

    def __init__(self) -> None:
        self.there: dict[str, dict[int, GuestRecord]] = {}
        self.on: defaultdict[str, HostGuests] = defaultdict(HostGuests)

    def add(self, guest: GuestRecord) -> bool:
        """False: it was there already."""
        attempts = self.there.setdefault(guest.build, {})
        if guest.attempt in attempts:
            return False
        attempts[guest.attempt] = guest
        host = self.on[guest.root]
        host.instances += 1
        host.changes += 1
        host.there[guest.build, guest.attempt] = guest
        if guest.image:
            host.images[guest.image] = None
            host.images.move_to_end(guest.image)
            if len(host.images) > MAX_CACHED:
                host.images.popitem(last=False)
            host.properties.update(guest.properties)
        return True

    def of(self, root: str) -> list[GuestRecord]:
        """All that are there, in the order of their builds."""
        there = self.on[root].there if root in self.on else {}
        return [there[key] for key in sorted(there)]

    def is_there(self, guest: GuestRecord) -> bool:
        """Is it still, as it is said here?"""
        return self.there.get(guest.build, {}).get(guest.attempt) is guest

    def change(self, guest: GuestRecord) -> None:
        """It holds something else of its host than it did, or is in another state."""
        key = guest.build, guest.attempt
        self.there[guest.build][guest.attempt] = self.on[guest.root].there[key] = guest

    def remove(self, build: str, attempts: range) -> list[GuestRecord]:
        """Those of them that were there."""
        there = self.there.get(build, {})
        gone = [there.pop(attempt) for attempt in list(there) if attempt in attempts]
        for guest in gone:
            host = self.on[guest.root]
            host.instances -= 1
            host.changes += 1
            del host.there[guest.build, guest.attempt]
            for one in guest.properties:
                host.properties[one] -= 1
                if not host.properties[one]:
                    del host.properties[one]
        if not there:
            self.there.pop(build, None)
        return gone
