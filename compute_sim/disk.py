"""What outlives an agent's process: what became of its orders, its guests, and what each of them holds.

Kept in a file where there is one; where there is none, as in simulations, by whoever keeps this.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from bus.agent_builds import AgentBuilds
from bus.build_orders import reshaped_mappings
from bus.messages import AgentReported, BuildOrdered, DestroyOrdered
from bus.vocabulary import Allocations
from compute_sim.core.device_book import DeviceBook
from compute_sim.guest_file import GuestFile, GuestLine, GuestThere, OrderFailed, OrdersVoid
from compute_sim.guests import GuestRecord, Guests, guest_of


@dataclass(eq=False)
class AgentDisk:
    builds: AgentBuilds = field(default_factory=AgentBuilds)
    hosted: Guests = field(default_factory=Guests)
    devices: DeviceBook = field(default_factory=DeviceBook)
    file: GuestFile | None = None

    def __post_init__(self) -> None:
        if self.file is None:
            return
        for line in self.file.open():
            self._recall(line)
        self.file.shorten_by(self._all)

    @property
    def guests(self) -> dict[str, dict[int, str]]:
        """By build and attempt: on which root."""
        return {
            build: {attempt: guest.root for attempt, guest in attempts.items()}
            for build, attempts in self.hosted.there.items()
        }

    # What happens

    def begin(self, order: BuildOrdered) -> None:
        """From here on something of it is there, until it is removed."""
        self._enter(guest_of(order))

    def remove(self, build: str, attempts: range) -> None:
        for guest in self.hosted.remove(build, attempts):
            self.devices.give_back((guest.build, guest.attempt))

    def holds(self, order: BuildOrdered) -> bool:
        return order.attempt in self.hosted.there.get(order.build, ())

    def move(self, guest: GuestRecord, allocations: Allocations) -> None:
        """What it holds is of other providers: its host was reshaped."""
        mappings = reshaped_mappings(guest.mappings, guest.allocations, allocations)
        now = replace(guest, allocations=allocations, mappings=mappings)
        self._change(now)
        if self.file is not None and (guest.build, guest.attempt) not in self.builds.running:
            went = self.builds.outcome((guest.build, guest.attempt))
            self.file.add(GuestThere(now, went is None or went.outcome == "built"))

    def finished(self, outcome: AgentReported) -> None:
        """An attempt is over; what is left of it, if anything, is there."""
        self.builds.finished(outcome)
        if self.file is not None:
            self.file.add(*self._lines_of(outcome))

    def destroyed(self, order: DestroyOrdered) -> AgentReported:
        outcome = self.builds.destroyed(order)
        self.remove(order.build, range(order.attempt + 1))
        if self.file is not None:
            self.file.add(OrdersVoid(order.build, order.attempt))
        return outcome

    async def settled(self) -> None:
        """Returns when all this is known after a crash, too."""
        if self.file is not None:
            await self.file.settled()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    # What is kept

    def _enter(self, guest: GuestRecord) -> None:
        if self.hosted.add(guest):
            self.devices.hold((guest.build, guest.attempt), guest.allocations)

    def _change(self, guest: GuestRecord) -> None:
        self.hosted.change(guest)
        self.devices.move((guest.build, guest.attempt), guest.allocations)

    def _recall(self, line: GuestLine) -> None:
        match line:
            case GuestThere(guest=guest, built=built):
                if guest.attempt in self.hosted.there.get(guest.build, ()):  # it was moved within its host
                    self._change(guest)
                    return
                self._enter(guest)
                if built:
                    self.builds.finished(_built(guest))
            case OrderFailed():
                self.builds.finished(_failed(line))
            case OrdersVoid():
                self.builds.void(line.build, line.attempt)
                self.remove(line.build, range(line.attempt + 1))

    def _lines_of(self, outcome: AgentReported) -> Iterable[GuestLine]:
        there = self.hosted.there.get(outcome.build, {}).get(outcome.attempt)
        if there is not None:
            yield GuestThere(there, outcome.outcome == "built")
        if outcome.outcome == "failed":
            yield OrderFailed(
                outcome.build,
                outcome.attempt,
                outcome.cell,
                outcome.agent,
                outcome.root,
                outcome.host,
                outcome.cause,
                outcome.retry,
                outcome.leftover,
            )

    def _all(self) -> Iterable[GuestLine]:
        """What the file must say, and no more."""
        finished, void = self.builds.known()
        for build, attempt in void.items():
            yield OrdersVoid(build, attempt)
        for outcome in finished:
            yield from self._lines_of(outcome)
        told = {(one.build, one.attempt) for one in finished}
        for attempts in self.hosted.there.values():
            for guest in attempts.values():
                key = guest.build, guest.attempt
                if key not in told and key not in self.builds.running:
                    yield GuestThere(guest, True)  # so long ago that its outcome is remembered here alone


def _built(guest: GuestRecord) -> AgentReported:
    return AgentReported(
        build=guest.build,
        attempt=guest.attempt,
        cell=guest.cell,
        agent=guest.agent,
        root=guest.root,
        host=guest.host,
        outcome="built",
    )


def _failed(line: OrderFailed) -> AgentReported:
    return AgentReported(
        build=line.build,
        attempt=line.attempt,
        cell=line.cell,
        agent=line.agent,
        root=line.root,
        host=line.host,
        outcome="failed",
        retry=line.retry,
        leftover=line.leftover,
        cause=line.cause,
    )
