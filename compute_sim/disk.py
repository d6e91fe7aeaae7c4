"""Holds the agent's state that survives a restart: outcomes of orders, guests, and each guest's devices."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from bus.agent_builds import AgentBuilds, GuestOrder, reshaped_mappings
from bus.messages import AgentReported, DestroyOrdered
from bus.requests import BuildSpec
from bus.vocabulary import Allocations
from compute_sim import guest_file as lines
from compute_sim.core.device_book import DeviceBook, GuestKey
from compute_sim.core.ownership import GuestState
from compute_sim.guests import GuestRecord, Guests, guest_of, image_of

S = TypeVar("S", bound=msgspec.Struct)


class OrderMemory(Protocol):
    """A feature's record of the orders of an agent, with entries in the agent's file of guests."""

    entry: ClassVar[type[Any]]  # a struct that is encoded as an array with its tag

    def recall(self, entry: Any) -> None:
        """Remember what an entry of the file says."""

    def entries(self) -> Iterable[Any]:
        """Return the entries for all that is remembered."""


M = TypeVar("M", bound=OrderMemory)


@dataclass(eq=False)
class AgentDisk:
    builds: AgentBuilds = field(default_factory=AgentBuilds)
    hosted: Guests = field(default_factory=Guests)
    devices: DeviceBook = field(default_factory=DeviceBook)
    # guests that stopped at a power failure and have not been started again
    asleep: set[GuestKey] = field(default_factory=set)
    file: lines.GuestFile | None = None
    memories: dict[type[OrderMemory], Any] = field(default_factory=dict, init=False)
    # entries in the file that no memory has recalled, by tag
    _unread: dict[str, list[lines.FeatureEntry]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.file is None:
            return
        for line in self.file.open():
            self._recall(line)
        self.lose_power()
        self.file.shorten_by(self._all)

    def memory(self, type_: type[M]) -> M:
        """Return the memory of a feature; the first call recalls its entries in the file."""
        if type_ not in self.memories:
            memory = self.memories[type_] = type_()
            for entry in self._unread.pop(type_.entry.__name__, ()):
                memory.recall(msgspec.json.decode(entry.encoded, type=type_.entry))
        found: M = self.memories[type_]
        return found

    def store_entry(self, entry: msgspec.Struct) -> None:
        """Add an entry of a feature to the file."""
        self._store(lines.feature_entry(entry))

    @property
    def guests(self) -> dict[str, dict[int, str]]:
        """Return the root provider of each guest's host: build → attempt → root."""
        there = self.hosted.there
        return {build: {attempt: g.root for attempt, g in guests.items()} for build, guests in there.items()}

    @property
    def all_guests(self) -> list[GuestRecord]:
        return [guest for attempts in self.hosted.there.values() for guest in attempts.values()]

    def running(self) -> list[GuestRecord]:
        """Return the agent's guests that run now. Among all agents, at most one guest of a build may run."""
        awake = (guest for guest in self.all_guests if (guest.build, guest.attempt) not in self.asleep)
        return [guest for guest in awake if guest.state == "running"]

    def guest(self, build: str, attempt: int) -> GuestRecord | None:
        return self.hosted.there.get(build, {}).get(attempt)

    def lose_power(self) -> None:
        """Mark all running guests as stopped by a power failure; they must be started again."""
        self.asleep = {(guest.build, guest.attempt) for guest in self.all_guests if guest.state == "running"}

    def wake(self, guest: GuestRecord) -> None:
        self.asleep.discard((guest.build, guest.attempt))

    def begin(self, order: GuestOrder) -> None:
        """Record an order's guest before the order is executed; after a crash the guest may be incomplete."""
        self._enter(guest_of(order))

    def become(self, guest: GuestRecord, state: GuestState) -> GuestRecord:
        now = replace(guest, state=state)
        self.hosted.change(now)
        if state == "running":
            self._record_built(now)
        self._store(lines.GuestThere(now, state != "arriving"))
        return now

    def rename(self, guest: GuestRecord, attempt: int, spec: BuildSpec | None = None) -> GuestRecord:
        """Give a guest another attempt number, and with `spec` another image; return its new record."""
        image, properties = image_of(spec) if spec is not None else (guest.image, guest.properties)
        now = replace(guest, attempt=attempt, image=image, properties=properties)
        self._rename(now, guest.attempt)
        self._store(lines.GuestRenamed(now, guest.attempt))
        return now

    def lose(self, guest: GuestRecord) -> None:
        """Remove a guest that no longer exists because its build or a later order failed."""
        self.remove(guest.build, range(guest.attempt, guest.attempt + 1))
        self._store(lines.GuestGone(guest.build, guest.attempt))

    def remove(self, build: str, attempts: range) -> None:
        for guest in self.hosted.remove(build, attempts):
            self.devices.release((guest.build, guest.attempt))
            self.wake(guest)

    def move(self, guest: GuestRecord, allocations: Allocations) -> None:
        """Replace the recorded allocations of a guest after a reshape of its host."""
        mappings = reshaped_mappings(guest.mappings, guest.allocations, allocations)
        now = replace(guest, allocations=allocations, mappings=mappings)
        self._change(now)
        if self.file is not None and (guest.build, guest.attempt) not in self.builds.running:
            went = self.builds.outcome((guest.build, guest.attempt))
            self.file.add(lines.GuestThere(now, went is None or went.outcome == "built"))

    def finished(self, outcome: AgentReported) -> None:
        """Record the reported outcome of a build attempt; a built guest is recorded as running."""
        self.builds.finished(outcome)
        guest = self.guest(outcome.build, outcome.attempt)
        if guest is not None and outcome.outcome == "built":
            self.hosted.change(replace(guest, state="running"))
        self._store(*self._lines_of(outcome))

    def destroyed(self, order: DestroyOrdered) -> AgentReported:
        outcome = self.builds.destroyed(order)
        self.remove(order.build, range(order.above + 1, order.attempt + 1))
        self._store(lines.OrdersVoid(order.build, order.attempt, order.above))
        return outcome

    async def settled(self) -> None:
        """Wait until all changes of the agent's state are stored in its file."""
        if self.file is not None:
            await self.file.settled()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def _store(self, *added: lines.Line) -> None:
        if self.file is not None:
            self.file.add(*added)

    def _enter(self, guest: GuestRecord) -> None:
        if self.hosted.add(guest):
            self.devices.hold((guest.build, guest.attempt), guest.allocations)

    def _change(self, guest: GuestRecord) -> None:
        self.hosted.change(guest)
        self.devices.move((guest.build, guest.attempt), guest.allocations)

    def _rename(self, now: GuestRecord, was: int) -> None:
        self.remove(now.build, range(was, was + 1))
        self._enter(now)
        self.builds.void(now.build, was, was - 1)
        if now.state == "running":
            self._record_built(now)

    def _record_built(self, guest: GuestRecord) -> None:
        if self.builds.outcome((guest.build, guest.attempt)) is None:
            self.builds.finished(AgentReported(**guest.address, outcome="built"))

    def _recall(self, line: lines.Line) -> None:
        match line:
            case lines.FeatureEntry():
                self._unread.setdefault(line.tag, []).append(line)
            case lines.GuestThere(guest=guest, built=built):
                if not built and guest.state == "running":  # written by a version without states
                    guest = replace(guest, state="arriving")
                if self.guest(guest.build, guest.attempt) is not None:  # a change of a known guest
                    self._change(guest)
                else:
                    self._enter(guest)
                if built:
                    self._record_built(guest)
            case lines.OrderFailed():
                self.builds.finished(AgentReported(outcome="failed", **asdict(line)))
            case lines.OrdersVoid():
                self.builds.void(line.build, line.attempt, line.above)
                self.remove(line.build, range(line.above + 1, line.attempt + 1))
            case lines.GuestRenamed():
                self._rename(line.guest, line.was)
            case lines.GuestGone():
                self.remove(line.build, range(line.attempt, line.attempt + 1))

    def _lines_of(self, outcome: AgentReported) -> Iterable[lines.GuestLine]:
        guest = self.guest(outcome.build, outcome.attempt)
        if guest is not None:
            yield lines.GuestThere(guest, outcome.outcome == "built")
        if outcome.outcome == "failed":
            yield _of_fields(lines.OrderFailed, outcome)

    def _all(self) -> Iterable[lines.Line]:
        finished, void = self.builds.known()
        for build, spans in void.items():
            for above, attempt in spans:
                yield lines.OrdersVoid(build, attempt, above)
        for outcome in finished:
            yield from self._lines_of(outcome)
        listed = {(outcome.build, outcome.attempt) for outcome in finished}
        for guest in self.all_guests:
            key = guest.build, guest.attempt
            if key not in listed and key not in self.builds.running:
                # The guest is still arriving, or the outcome of its attempt is no longer stored.
                yield lines.GuestThere(guest, guest.state != "arriving")
        for memory in self.memories.values():
            yield from map(lines.feature_entry, memory.entries())
        for unread in self._unread.values():
            yield from unread


def _of_fields(made: type[S], source: msgspec.Struct) -> S:
    return made(**{name: getattr(source, name) for name in made.__struct_fields__})
