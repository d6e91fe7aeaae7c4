"""Agents with their hosts, and schedulers: time since the last heartbeat of each, and whether it is late."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from bus.messages import HostReported

EXPIRY = 3600.0  # seconds without a heartbeat until a sender is removed
MOST = 20_000  # of each
LATE = 3.0  # periods without a heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHeartbeat:
    cell: str
    agent: str
    at: float
    period: float
    hosts: int
    instances: int

    def lag(self, now: float) -> float:
        """Return the seconds since the last heartbeat."""
        return max(0.0, now - self.at)

    def late(self, now: float) -> bool:
        return self.lag(now) > LATE * max(self.period, 1.0)


class Heartbeats:
    """The last heartbeat of each agent and scheduler."""

    def __init__(self) -> None:
        self._agents: OrderedDict[tuple[str, str], AgentHeartbeat] = OrderedDict()
        self._schedulers: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def add(self, report: HostReported, now: float) -> None:
        hosts = report.hosts
        key = report.cell, report.agent
        self._agents[key] = AgentHeartbeat(
            cell=report.cell,
            agent=report.agent,
            at=now,
            period=report.period,
            hosts=len(hosts),
            instances=sum(host.instances for host in hosts),
        )
        self._agents.move_to_end(key)
        while len(self._agents) > MOST:
            self._agents.popitem(last=False)

    def add_scheduler(self, name: str, now: float, waits: int = 0) -> bool:
        """Record a heartbeat. Return whether the number of requests that wait with it has changed."""
        before = self._schedulers.get(name)
        self._schedulers[name] = now, waits
        self._schedulers.move_to_end(name)
        while len(self._schedulers) > MOST:
            self._schedulers.popitem(last=False)
        return before is None or before[1] != waits

    def agents(self, now: float) -> Sequence[AgentHeartbeat]:
        """Return the agents by cell and name. One that was silent for an hour is removed."""
        while self._agents and now - next(iter(self._agents.values())).at > EXPIRY:
            self._agents.popitem(last=False)
        return [self._agents[key] for key in sorted(self._agents)]

    def schedulers(self, now: float) -> dict[str, float]:
        """Return name → seconds since the last heartbeat."""
        while self._schedulers and now - next(iter(self._schedulers.values()))[0] > EXPIRY:
            self._schedulers.popitem(last=False)
        return {name: max(0.0, now - at) for name, (at, _) in sorted(self._schedulers.items())}
