"""Holds a simulated agent's guests and cached images by host, and its jobs."""

import asyncio
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

import msgspec

from bus.agent_builds import allocations_of
from bus.claims import holder_consumer
from bus.messages import DestroyOrdered, GuestOrder
from bus.requests import BuildSpec
from bus.vocabulary import Allocations, Compact
from compute_sim.core.faults import CrashPlan
from compute_sim.core.ownership import GuestState

MAX_CACHED = 16  # images that a host caches, least recently used dropped first
MAX_PROPERTIES = 32  # of one image that a host reports


class GuestRecord(Compact, frozen=True):
    """A guest that exists on an agent's host, with its allocations, image and state."""

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
        """Return the consumers that may hold the guest's allocations: its build and its holder consumer."""
        return self.build, holder_consumer(self.build, self.attempt)

    @property
    def address(self) -> dict[str, Any]:
        """Return the fields that identify a guest: build, attempt, cell, agent, root and host, by name."""
        return {name: getattr(self, name) for name in ("build", "attempt", "cell", "agent", "root", "host")}


def guest_of(order: GuestOrder) -> GuestRecord:
    """Return a record, in state `arriving`, of the guest that an order creates or brings to the host."""
    return GuestRecord(
        *(order.build, order.attempt, order.cell, order.agent, order.root, order.host),
        *(allocations_of(order), order.mappings),
        *image_of(order.spec),
        "arriving",
    )


def image_of(spec: BuildSpec) -> tuple[str, tuple[str, ...]]:
    """Return the name and the properties of the image that a guest is built from."""
    if spec.image is None:
        return "", ()
    some = list(spec.image.properties.items())[:MAX_PROPERTIES]
    return spec.image.name, tuple(f"{name}={value}" for name, value in some)


@dataclass(eq=False)
class HostGuests:
    """The guests and the cached images of one simulated host."""

    instances: int = 0
    changes: int = 0  # number of all changes of reported values
    # cached images, most recently used last
    images: OrderedDict[str, None] = field(default_factory=OrderedDict)
    properties: Counter[str] = field(default_factory=Counter)  # NAME=VALUE of the instances' images
    there: dict[tuple[str, int], GuestRecord] = field(default_factory=dict)  # by build and attempt


class Guests:
    """All guests of an agent, indexed by build and attempt, and by host."""

    def __init__(self) -> None:
        self.there: dict[str, dict[int, GuestRecord]] = {}
        self.on: defaultdict[str, HostGuests] = defaultdict(HostGuests)

    def add(self, guest: GuestRecord) -> bool:
        """Add a guest to the records; return False if this attempt of its build is recorded already."""
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
        """Return the records of the guests on a host, sorted by build."""
        guests = self.on[root].there if root in self.on else {}
        return [guests[key] for key in sorted(guests)]

    def is_there(self, guest: GuestRecord) -> bool:
        """Return whether this object is the current record of its guest: neither replaced nor removed."""
        return self.there.get(guest.build, {}).get(guest.attempt) is guest

    def change(self, guest: GuestRecord) -> None:
        """Replace the agent's record of a guest by one with other allocations or another state."""
        key = guest.build, guest.attempt
        self.there[guest.build][guest.attempt] = self.on[guest.root].there[key] = guest

    def remove(self, build: str, attempts: range) -> list[GuestRecord]:
        """Remove the records of a build's guests with attempt numbers in this range, and return them."""
        guests = self.there.get(build, {})
        removed = [guests.pop(attempt) for attempt in list(guests) if attempt in attempts]
        for guest in removed:
            host = self.on[guest.root]
            host.instances -= 1
            host.changes += 1
            del host.there[guest.build, guest.attempt]
            for property_ in guest.properties:
                host.properties[property_] -= 1
                if not host.properties[property_]:
                    del host.properties[property_]
        if not guests:
            self.there.pop(build, None)
        return removed


How = Literal["done", "lost", "destroyed", "overtaken", "handed over"]
JobKey = tuple[str, object]  # identifies a job of one build
ROUND = 0.025  # seconds between two rounds of ending jobs: each costs a write and wakes other processes


@dataclass(eq=False, slots=True)
class AgentJob:
    """One order, such as the build of a guest, that an agent is executing.

    If the order is delivered again, only the last delivery waits for the job's result.
    """

    build: str
    attempt: int  # of the guest
    key: JobKey
    root: str
    started: float
    due: float
    step: int = 0  # number of the order, if later orders of the guest replace it
    lost: bool = False  # the power failed
    limit: asyncio.Timeout | None = None  # of the running call of a driver
    is_interrupted: bool = False  # a later order ended the job
    waiter: asyncio.Future[How] | None = None

    def finish(self, how: How) -> None:
        """End the job. If the guest is destroyed, or another order overtook this one, a running driver is
        interrupted.
        """
        if how in ("destroyed", "overtaken"):
            self.is_interrupted = True
            if self.limit is not None:
                self.limit.reschedule(asyncio.get_running_loop().time())
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(how)

    def make_due(self) -> None:
        """Let the job end now instead of after its planned duration."""
        self.due = min(self.due, asyncio.get_running_loop().time())


class AgentJobs:
    """The jobs that an agent executes now, by build, with their number per host."""

    def __init__(self) -> None:
        self.on: Counter[str] = Counter()  # by root
        self._of: dict[str, dict[JobKey, AgentJob]] = {}

    def __iter__(self) -> Iterator[AgentJob]:
        return (job for jobs in self._of.values() for job in jobs.values())

    def begin(self, job: AgentJob) -> AgentJob:
        """Record a job that has begun."""
        self._of.setdefault(job.build, {})[job.key] = job
        self.on[job.root] += 1
        return job

    def get(self, build: str, key: JobKey) -> AgentJob | None:
        return self._of.get(build, {}).get(key)

    def end(self, job: AgentJob) -> asyncio.Future[How]:
        """Return a future that gets the job's result when the job ends.

        If an earlier delivery of the order waits, the earlier future is completed with `handed over`.
        """
        job.finish("handed over")
        loop = asyncio.get_running_loop()
        job.waiter = loop.create_future()
        if job.lost:
            job.finish("lost")
        elif job.due <= loop.time():
            job.finish("done")
        else:
            loop.call_at(ceil(job.due / ROUND) * ROUND, job.finish, "done")
        return job.waiter

    def finish(self, job: AgentJob) -> bool:
        """Remove an ended job from the running jobs; return False if it was removed or replaced already."""
        if self.get(job.build, job.key) is not job:
            return False
        jobs = self._of[job.build]
        del jobs[job.key]
        if not jobs:
            del self._of[job.build]
        self.on[job.root] -= 1
        return True

    def destroy(self, order: DestroyOrdered) -> None:
        """End all jobs of the attempts that the order names."""
        for job in list(self._of.get(order.build, {}).values()):
            if order.above < job.attempt <= order.attempt:
                self.finish(job)
                job.finish("destroyed")


class PowerSupply:
    """The simulated power supply of an agent's hosts: it fails after some orders, then works again."""

    def __init__(self, agent: str, crashes: CrashPlan, jobs: AgentJobs) -> None:
        self.on = True
        self.failed = 0  # number of failures
        self.changed: Callable[[], None] = lambda: None  # called at each failure and return
        self._agent, self._crashes, self._jobs = agent, crashes, jobs
        self._left = crashes.next_after(agent, 0)
        self._back = asyncio.Event()
        self._back.set()

    async def there(self) -> None:
        """Wait until the agent has power."""
        await self._back.wait()

    def count_down(self) -> None:
        """Count an event; the planned one causes a power failure."""
        if self._left:
            self._left -= 1
            if not self._left:
                self.fail()

    def fail(self) -> None:
        """Simulate a power failure of the agent: all running jobs are lost."""
        self.on = False
        self._back.clear()
        for job in self._jobs:
            job.lost = True
            job.finish("lost")
        self.changed()
        asyncio.get_running_loop().call_later(self._crashes.away, self._come_back)

    def _come_back(self) -> None:
        self.failed += 1
        self._left = self._crashes.next_after(self._agent, self.failed)
        self.on = True
        self.changed()
        self._back.set()
