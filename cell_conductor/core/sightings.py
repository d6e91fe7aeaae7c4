"""When an agent's lease is over for certain, as one conductor has seen it by its own clock alone.

An agent counts its lease from when it asked, which was before its beat was stored, which was before that beat
was first seen here. So when so long has passed since then, and the beat is still the same, the lease is over,
whatever any clock says; clocks need only run about as fast as one another (DRIFT).
"""

from collections.abc import Mapping

DRIFT = 0.02  # by which the agent's clock may run slower than ours
GRACE = 0.25  # seconds: what an agent had sent off just before its lease was over has arrived

Mark = tuple[int, int]  # the epoch of a lease, and how often it was renewed


class Sightings:
    """What was seen of agents.

    Times are a clock's that never goes back, and that goes on in a process that is stopped.
    """

    def __init__(self, deaf_after: float) -> None:
        self._deaf_after = deaf_after
        self._seen: dict[str, tuple[Mark, float]] = {}  # and since when
        self._news = float("-inf")  # when anybody was heard of last

    def look(self, marks: Mapping[str, Mark], now: float) -> None:
        """This is what is stored of them now. When nobody was heard of for long it is we who are deaf, or the
        broker or the database was away: then everybody's time begins anew."""
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
        """Somebody has asked."""
        if now - self._news > self._deaf_after:
            self._seen = {agent: (mark, now) for agent, (mark, _) in self._seen.items()}
        self._news = now

    def left(self, agent: str, mark: Mark, lease: float, now: float) -> float:
        """Seconds until the lease with this mark is over for certain; 0 or less: it is."""
        seen = self._seen.get(agent)
        since = seen[1] if seen is not None and seen[0] == mark else now
        return since + lease * (1 + DRIFT) + GRACE - now
