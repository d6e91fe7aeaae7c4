"""Finds hosts and aggregates by name; disables hosts and marks them as forced down."""

from collections.abc import Iterable, Sequence

from berth.kit.hosts import A_PAGE
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import Unavailable, Unroutable
from bus.host_health import (
    FindHostHealth,
    HostCapabilities,
    HostHealth,
    HostStanding,
    every_health,
    standing,
    unanswered,
)
from bus.queries import FindWaiting, HeldHost
from bus.resources import Provider
from bus.vocabulary import portions

HEALTH_SECONDS = 3.0  # time limit for a scheduler's answer


class HostStandings:
    """The states of hosts, from their traits in placement and from a scheduler's report of their health."""

    def __init__(
        self, health: dict[str, HostHealth] | None, capabilities: Iterable[HostCapabilities] = ()
    ) -> None:
        self._health = health  # root → its health; None: no scheduler answers
        self._capabilities = {each.root: each for each in capabilities}

    @classmethod
    async def ask(cls, bus: Bus, roots: Sequence[str] = (), described: Sequence[str] = ()) -> "HostStandings":
        """Return the states of hosts: query a scheduler for the health of the hosts `roots`, and for the
        hypervisors of the hosts `described`. If no scheduler answers, the health is unknown.

        Hosts are given as ids of root providers. Without `roots`, query the health of all hosts not up.
        """
        ask = bus.asker(topics.HOST_HEALTH, timeout=HEALTH_SECONDS)
        capabilities: list[HostCapabilities] = []
        try:
            for some in portions(described, A_PAGE):
                answer = await ask(FindHostHealth(roots=some, limit=1, described=True))
                capabilities += answer.capabilities
            return cls({health.root: health async for health in every_health(ask, roots)}, capabilities)
        except (Unavailable, Unroutable):
            return cls(None)

    def capabilities(self, root: Provider) -> HostCapabilities:
        """Return a host's hypervisor, driver and agent version; empty if it never sent a heartbeat."""
        return self._capabilities.get(root.id) or HostCapabilities(root=root.id)

    def of(self, root: Provider) -> HostStanding:
        """Return the standing of a host; its health is unknown if no scheduler has answered."""
        health = unanswered(root) if self._health is None else self._health.get(root.id)
        return standing(root.traits, health, root.kept_traits, deleted=root.gone)


async def holds_on(bus: Bus, root: str) -> Sequence[HeldHost]:
    """Return for which waiting requests a host is held; empty if no scheduler answers."""
    try:
        found = await bus.asker(topics.WAITING, timeout=HEALTH_SECONDS)(FindWaiting(on=(root,), limit=1))
    except (Unavailable, Unroutable):
        return ()
    return found.holds
