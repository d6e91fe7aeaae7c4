"""What a simulated agent tells by itself: the state of its hosts, again and again, and what they have."""

from collections import deque
from collections.abc import Sequence

from bus.clock import Clock
from bus.messages import FindProviders, HostReported, InventoryReported, NodeChanged, ProvidersFound
from bus.protocol import Ask
from bus.report_sequence import ReportSequence
from bus.vocabulary import HostState, ProviderReport
from compute_sim.agent import SimulatedAgent
from compute_sim.core import draw
from compute_sim.fleet import SimAgent, SimHost

HOSTS_IN_A_REPORT = 500
HYPERVISOR_VERSION = 8_002_000  # 8.2.0, as libvirt tells it
FIRST_GAP = 10.0  # between announcements at first, doubled each time: placement may not be there yet


class HostNews:
    """News of one agent's hosts, while there is power."""

    def __init__(
        self,
        who: SimAgent,
        does: SimulatedAgent,
        period: float,
        announce_every: float,
        clock: Clock,
        providers: Ask[FindProviders, ProvidersFound] | None,
    ) -> None:
        self.agent, self.cell, self.hosts = who.agent, who.cell, who.hosts
        self.period = period
        self.announce_every = announce_every
        self.clock = clock
        self._does = does
        self._crashes = 0  # of which it is known
        self._to_announce: deque[SimHost] = deque()
        self._gap = FIRST_GAP
        self._next_round = 0.0
        self._run = clock.uuid()
        self._sequence = ReportSequence(clock)
        self._providers = providers
        self._to_recall = [host.root for host in self.hosts if not host.metal] if providers else []

    async def beat(self) -> Sequence[HostReported]:
        """The state of all hosts, while there is power."""
        if not self._does.powered:
            return []
        sequence = self._sequence.next()
        return [
            HostReported(
                cell=self.cell,
                agent=self.agent,
                sequence=sequence,
                run=self._run,
                period=self.period,
                hosts=tuple(map(self._state, self.hosts[start : start + HOSTS_IN_A_REPORT])),
            )
            for start in range(0, len(self.hosts), HOSTS_IN_A_REPORT)
        ]

    async def announce(self) -> Sequence[InventoryReported | NodeChanged]:
        """Some of the inventories that are due: all of them at the start, after a crash, and now and then."""
        await self._recall()
        now = self.clock.monotonic()
        if not self._does.powered:
            return []
        if self._crashes != self._does.crashed:
            self._crashes, self._gap, self._next_round = self._does.crashed, FIRST_GAP, 0.0
        if now >= self._next_round and not self._to_announce:
            self._to_announce.extend(self.hosts)
            self._next_round = now + self._gap
            self._gap = min(2 * self._gap, self.announce_every)
        sequence = self._sequence.next()
        chunk = min(len(self._to_announce), HOSTS_IN_A_REPORT)
        return [self._said_of(self._to_announce.popleft(), sequence) for _ in range(chunk)]

    async def _recall(self) -> None:
        """What was reported of these hosts before, by whomever: what we report comes after it."""
        while self._providers is not None and self._to_recall:
            some = self._to_recall[-HOSTS_IN_A_REPORT:]
            found = await self._providers(FindProviders(ids=tuple(some), parts=("owner",), cell=self.cell))
            for one in found.providers:
                self._sequence.follow(one.sequence)
            del self._to_recall[-len(some) :]

    def _state(self, host: SimHost) -> HostState:
        building, guests = self._does.building[host.root], self._does.disk.hosted.on[host.root]
        minute = int(self.clock.now() // 60)
        temperature = 22.0 + 3.0 * building + 8.0 * draw(host.root, minute)
        return HostState(
            root=host.root,
            host=host.host,
            zone=host.zone,
            building=building,
            load=float(building),
            metrics={"temperature": round(temperature, 1), "power_watts": round(150 + 8 * temperature)},
            instances=guests.instances,
            images=tuple(guests.images),
            image_properties=dict(guests.properties),
            architecture=host.architecture,
            hypervisor="ironic" if host.metal else "QEMU",
            hypervisor_version=1 if host.metal else HYPERVISOR_VERSION,
            vm_modes=("hvm",),
            ip=host.ip,
            capabilities={"cpu_info:arch": host.architecture},
        )

    def _said_of(self, host: SimHost, sequence: int) -> InventoryReported | NodeChanged:
        if host.metal:
            return self._enrolled(host)
        provider = ProviderReport(
            id=host.root,
            name=host.host,
            inventories=dict(host.inventory),
            traits=host.traits,
            aggregates=host.aggregates,
        )
        return InventoryReported(
            root=host.root,
            host=host.host,
            cell=self.cell,
            agent=self.agent,
            zone=host.zone,
            sequence=sequence,
            providers=(provider, *host.children),
        )

    def _enrolled(self, host: SimHost) -> NodeChanged:
        """A node as it was first enrolled: so long ago that whatever happened to it since counts for more."""
        return NodeChanged(
            event="create",
            node=host.root,
            name=host.host,
            at=1.0,
            cell=self.cell,
            agent=self.agent,
            resource_class=host.metal,
            provision_state="available",
            traits=host.traits,
            zone=host.zone,
        )
