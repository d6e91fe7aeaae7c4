"""A process is killed directly after its commit, or after publishing: every commit is published."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bus.replication import PlacementChanged
from tests.support.placement_builders import a_placement, last_told

DEADLINE = 60.0
ROOT = Path(__file__).parent.parent.parent

PROCESS = """
import asyncio, os, signal, sys
from bus.replication import ProviderChange
from placement_worker.store import changes
from tests.support.placement_builders import a_placement, uid

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def publish(*messages):
    print(*(one.number for one in messages), flush=True)
    die()

async def main(url, when):
    async with a_placement(url) as placement:
        for number in (1, 2):
            async with placement.database.write() as tx:
                await changes.announce(tx, [ProviderChange(uid(number, "a"), uid(number, "a"), 1, {})])
                if (number, when) == (2, "committed"):
                    tx.after_commit(die)
        await placement.log.relay.run(publish)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("database_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/store.db"


@pytest.mark.parametrize(("when", "printed"), [("committed", ""), ("published", "1 2\n")])
async def test_what_a_killed_process_committed_is_told(url: str, when: str, printed: str) -> None:
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROCESS, url, when],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, printed), killed.stderr

    published: list[int] = []

    async def publish(*messages: PlacementChanged) -> None:
        published.extend(message.number for message in messages)

    async with a_placement(url) as placement:
        assert await last_told(placement) == 0
        relay = asyncio.ensure_future(placement.log.relay.run(publish))
        async with asyncio.timeout(DEADLINE):
            while await last_told(placement) < 2:
                await asyncio.sleep(0.01)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
    assert published == [1, 2]
