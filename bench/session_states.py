"""Samples what PostgreSQL's sessions wait for during a load."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy.engine import make_url

PERIOD = 0.02
_SESSIONS = """
    SELECT CASE
    WHEN wait_event_type = 'Lock' AND query ILIKE '%UPDATE%changes SET number%'
    THEN 'row of the change number'
    WHEN wait_event_type = 'Lock' THEN 'another lock'
    WHEN wait_event IN ('WALSync', 'WALWrite') OR wait_event_type = 'IPC' THEN 'write-ahead log'
    WHEN wait_event_type IS NULL THEN 'running'
    ELSE 'other' END AS state
    FROM pg_stat_activity
    WHERE state = 'active' AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class SessionStates:
    """Counts PostgreSQL's active sessions by what they wait for."""

    def __init__(self) -> None:
        self.samples = 0
        self.seen: Counter[str] = Counter()

    def mean(self, state: str) -> float:
        """Return the average number of sessions in this state."""
        return self.seen[state] / max(self.samples, 1)

    def __str__(self) -> str:
        return ", ".join(f"{state} {self.mean(state):.2f}" for state, _ in self.seen.most_common())

    async def sample(self, url: str, stopping: threading.Event) -> None:
        connection = await asyncpg.connect(make_url(url).set(drivername="postgresql").render_as_string(False))
        try:
            while not stopping.is_set():
                self.seen.update(row["state"] for row in await connection.fetch(_SESSIONS))
                self.samples += 1
                await asyncio.sleep(PERIOD)
        finally:
            await connection.close()


@contextmanager
def sampled(url: str) -> Iterator[SessionStates]:
    """Sample the sessions of the database at this URL, in a thread, while the block runs."""
    states, stopping = SessionStates(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(states.sample(url, stopping)))
    thread.start()
    try:
        yield states
    finally:
        stopping.set()
        thread.join()
