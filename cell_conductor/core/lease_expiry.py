"""Decides when an agent's lease has expired for certain, by this conductor's clock alone.

An agent counts its lease from its question, which precedes the storing of its beat, which precedes the
moment at which this conductor first saw that beat. If the lease's duration has passed since that moment with
the same beat, the lease has expired whatever other clocks show. Clocks only need similar speed (DRIFT).
"""

from collections.abc import Mapping

DRIFT = 0.02  # how much slower the agent's clock may run
GRACE = 0.25  # seconds: requests that the agent sent just before the end have arrived

Mark = tuple[int, int]  # the epoch of a lease, and its number of renewals


class Sightings:
    """The beats seen of each agent.

    Times are monotonic and go on while the process is stopped.
    """

    def __init__(self, deaf_after: float) -> None:
        self._deaf_after = deaf_after
        self._seen: dict[str, tuple[Mark, float]] = {}  # with the time of the first sight
        self._news = float("-inf")  # time of the last beat of any agent

    def look(self, marks: Mapping[str, Mark], now: float) -> None:
        """Note the stored beats. After a long silence of all agents the fault is ours, the broker's or the
        database's: then all leases start anew.
        """
        same = {
            agent for agent, mark in marks.items() if agent in self._seen and self._seen[agent][0] == mark
        }
        if len(same) < len(marks):
            self.heard(now)
        if now - self._news > self._deaf_after:
            same = set()
        self._seen = {
            agent: self._seen[agent] if agent in same else (mark, now) for agent, mark in marks.items()
        }

    def heard(self, now: float) -> None:
        """Note a question of any agent."""
        if now - self._news > self._deaf_after:
            self._seen = {agent: (mark, now) for agent, (mark, _) in self._seen.items()}
        self._news = now

    def left(self, agent: str, mark: Mark, lease: float, now: float) -> float:
        """Return the seconds until the lease has expired for certain; 0 or less if it has."""
        seen = self._seen.get(agent)
        since = seen[1] if seen is not None and seen[0] == mark else now
        return since + lease * (1 + DRIFT) + GRACE - now
