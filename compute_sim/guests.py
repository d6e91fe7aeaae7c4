"""The guests of a simulated agent's hosts, and the image caches of the hosts."""

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bus.agent_builds import allocations_of
from bus.claims import holder_consumer
from bus.messages import BuildOrdered
from bus.moves import MoveOrdered
from bus.requests import BuildSpec
from bus.vocabulary import Allocations, Compact
from compute_sim.core.phases import GuestState

MAX_CACHED = 16  # images that a host caches, least recently used dropped first
MAX_PROPERTIES = 32  # of one image that a host reports


class GuestRecord(Compact, frozen=True):
    """An existing guest: its host, its resources and its image."""

    build: str
    attempt: int
    cell: str
    agent: str
    root: str
    host: str
    allocations: Allocations
    mappings: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    image: str = ""
    properties: tuple[str, ...] = ()  # NAME=VALUE of the image
    state: GuestState = "running"

    @property
    def consumers(self) -> tuple[str, str]:
        """Return the consumers that may hold the guest's allocations: build and holder consumer."""
        return self.build, holder_consumer(self.build, self.attempt)

    @property
    def address(self) -> dict[str, Any]:
        """Return the fields that orders and reports about the guest have in common."""
        return {name: getattr(self, name) for name in ("build", "attempt", "cell", "agent", "root", "host")}


def guest_of(order: BuildOrdered | MoveOrdered) -> GuestRecord:
    """Return the record of a guest from the order that builds it or awaits it."""
    return GuestRecord(
        *(order.build, order.attempt, order.cell, order.agent, order.root, order.host),
        *(allocations_of(order), order.mappings),
        *image_of(order.spec),
        "arriving",
    )


def image_of(spec: BuildSpec) -> tuple[str, tuple[str, ...]]:
    """Return the name and the properties of a guest's image."""
    if spec.image is None:
        return "", ()
    some = list(spec.image.properties.items())[:MAX_PROPERTIES]
    return spec.image.name, tuple(f"{name}={value}" for name, value in some)


@dataclass(eq=False)
class HostGuests:
    """The guests and the image cache of one simulated host."""

    instances: int = 0
    changes: int = 0  # changes of reported values, ever
    # cached images, most recently used last
    images: OrderedDict[str, None] = field(default_factory=OrderedDict)
    properties: Counter[str] = field(default_factory=Counter)  # NAME=VALUE of the instances' images
    there: dict[tuple[str, int], GuestRecord] = field(default_factory=dict)  # by build and attempt


class Guests:
    """All guests of an agent, by build and attempt, and by host."""

    def __init__(self) -> None:
        self.there: dict[str, dict[int, GuestRecord]] = {}
        self.on: defaultdict[str, HostGuests] = defaultdict(HostGuests)

    def add(self, guest: GuestRecord) -> bool:
        """Add a guest; return False if it exists already."""
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
        """Return the guests of a host, ordered by build."""
        there = self.on[root].there if root in self.on else {}
        return [there[key] for key in sorted(there)]

    def is_there(self, guest: GuestRecord) -> bool:
        """Return whether exactly this record of a guest is the current one."""
        return self.there.get(guest.build, {}).get(guest.attempt) is guest

    def change(self, guest: GuestRecord) -> None:
        """Replace a guest's record: its allocations or state have changed."""
        key = guest.build, guest.attempt
        self.there[guest.build][guest.attempt] = self.on[guest.root].there[key] = guest

    def remove(self, build: str, attempts: range) -> list[GuestRecord]:
        """Remove the guests of these attempts, and return them."""
        there = self.there.get(build, {})
        gone = [there.pop(attempt) for attempt in list(there) if attempt in attempts]
        for guest in gone:
            host = self.on[guest.root]
            host.instances -= 1
            host.changes += 1
            del host.there[guest.build, guest.attempt]
            for property_ in guest.properties:
                host.properties[property_] -= 1
                if not host.properties[property_]:
                    del host.properties[property_]
        if not there:
            self.there.pop(build, None)
        return gone
