"""A process is killed right after its commit, or right after publishing: nothing it committed is lost."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import MetaData, text

from bus.clock import Clock
from bus.database import Database
from bus.messages import PlacementChanged
from bus.outbox import Outbox, outbox_table
from bus.protocol import Envelope

DEADLINE = 20.0
ROOT = Path(__file__).parent.parent.parent

PROCESS = """
import asyncio, os, signal, sys
from bus.clock import Clock
from bus.database import Database
from bus.messages import PlacementChanged
from bus.outbox import Outbox

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def publish(envelopes):
    print(len(envelopes), flush=True)
    die()

async def main(url, when):
    database = Database(url)
    outbox = Outbox(database, Clock(), [PlacementChanged])
    async with database.write() as tx:
        tx.emit(PlacementChanged(number=1, changes=()))
        tx.emit(PlacementChanged(number=2, changes=()))
        if when == "committed":
            tx.after_commit(die)
    await outbox.relay(publish)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("database_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/store.db"


@pytest.mark.parametrize(("when", "printed"), [("committed", ""), ("published", "2\n")])
async def test_what_a_killed_process_committed_is_published(url: str, when: str, printed: str) -> None:
    database = Database(url)
    metadata = MetaData()
    outbox_table(metadata)
    async with database.write() as tx:
        await tx.connection.run_sync(metadata.create_all)

    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", PROCESS, url, when], cwd=ROOT, capture_output=True, text=True
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, printed), killed.stderr

    published: list[int] = []

    async def publish(envelopes: Sequence[Envelope]) -> None:
        published.extend(msgspec.json.decode(envelope.body)["number"] for envelope in envelopes)

    outbox = Outbox(database, Clock(), [PlacementChanged])
    relay = asyncio.ensure_future(outbox.relay(publish))
    async with asyncio.timeout(DEADLINE):
        while True:
            async with database.read() as tx:
                if (await tx.execute(text("SELECT count(*) FROM outbox"))).scalar_one() == 0:
                    break
            await asyncio.sleep(0.01)
    relay.cancel()
    await asyncio.gather(relay, return_exceptions=True)
    assert published == [1, 2]
    await database.close()
