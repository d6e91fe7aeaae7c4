"""Measures the time from Ironic's notification of an available node until it can be claimed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.topics import PLACEMENT_CHANGED
from ironic_sync import Notifications
from ironic_sync.core.node import ReceivedNotification, opened


@dataclass
class Delays:
    seconds: list[float] = field(default_factory=list)
    said: dict[str, float] = field(default_factory=dict)

    async def handle(self, notifications: Notifications) -> None:
        async def handle(bodies: Sequence[bytes]) -> None:
            for said in map(opened, bodies):
                if not isinstance(said, ReceivedNotification) or said.node is None:
                    continue
                ends = said.event == "provision_set" and said.phase == "end"
                if ends and said.node.provision_state == "available":
                    self.said[said.uuid] = said.at

        await notifications.run(handle, lambda: None)

    async def look(self, bus: Bus, clock: Clock, claimable: Callable[[], Awaitable[set[str]]]) -> None:
        changes = await bus.listen(PLACEMENT_CHANGED.at())
        while True:
            for change in (await changes.get()).changes:
                now = clock.now()
                if change.reshaped and change.root in self.said and change.root in await claimable():
                    self.seconds.append(now - self.said.pop(change.root))

    def __str__(self) -> str:
        in_order = sorted(self.seconds)
        if not in_order:
            return "no node became available"
        half, most, last = (1000 * in_order[int(share * (len(in_order) - 1))] for share in (0.5, 0.9, 1.0))
        return (
            f"Ironic's event → claimable, {len(in_order)} times: "
            f"p50 {half:.1f} ms, p90 {most:.1f} ms, longest {last:.1f} ms"
        )
