"""The address of the control room is printed once it listens there."""

import asyncio
import socket
import subprocess
import sys
from contextlib import ExitStack
from subprocess import PIPE

import pytest

from berth import control_room_place
from berth.control_room_place import saying_where, where_the_room_is, with_a_room
from berth.settings import Settings
from tests.support.waiting import in_time


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(control_room_place, "_GAP", 0.001)
    return with_a_room(Settings().having(control_room_http="127.0.0.1:0"))


CHOOSE = """
import sys
from berth import control_room_place
from berth.settings import Settings
control_room_place.PORT = int(sys.argv[1])
settings = control_room_place.with_a_room(Settings())
print(settings.control_room.http, flush=True)
sys.stdin.read()
"""


def test_two_control_rooms_that_start_together_use_different_ports() -> None:
    """Neither listens yet when the other chooses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    words = [sys.executable, "-c", CHOOSE, str(port)]
    with ExitStack() as running:
        both = [
            running.enter_context(subprocess.Popen(words, stdin=PIPE, stdout=PIPE, text=True))
            for _ in range(2)
        ]
        chosen = {popen.stdout.readline().strip() for popen in both if popen.stdout}
        for popen in both:
            popen.communicate()
    assert len(chosen) == 2 and f"127.0.0.1:{port}" in chosen


async def test_the_address_is_printed_when_the_control_room_listens(settings: Settings) -> None:
    telling = asyncio.create_task(where_the_room_is(settings))
    done, _ = await asyncio.wait((telling,), timeout=0.02)
    assert not done
    host, _, port = settings.control_room.http.rpartition(":")
    with socket.create_server((host, int(port))):
        assert await telling == f"the control room is at http://{host}:{port}/"


async def test_waiting_for_a_control_room_that_does_not_start_ends(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_room_place, "_LOOKS", 3)
    said = await where_the_room_is(settings)
    assert (
        said == f"the control room does not listen yet; it is to be at http://{settings.control_room.http}/"
    )


async def test_stopping_ends_the_wait_for_the_control_room(settings: Settings) -> None:
    stopping = asyncio.Event()
    stopping.set()
    assert await where_the_room_is(settings, stopping) == ""


async def test_without_a_control_room_no_address_is_printed() -> None:
    assert await where_the_room_is(Settings().having(control_room_http="off")) == ""


async def test_a_single_worker_prints_its_address_when_it_listens(settings: Settings) -> None:
    said: list[str] = []
    told, host, port = asyncio.Event(), *settings.control_room.http.rsplit(":", 1)

    def say(where: str) -> None:
        said.append(where)
        told.set()

    async def work() -> int:
        await asyncio.sleep(0.02)
        assert said == []
        with socket.create_server((host, int(port))):
            await in_time(told.wait())
        return 3

    assert await saying_where(settings, say, work()) == 3
    assert said == [f"the control room is at http://{host}:{port}/"]


async def test_a_control_room_that_ends_early_prints_no_address(settings: Settings) -> None:
    said: list[str] = []

    async def refused() -> int:
        raise ValueError("no such token file")

    with pytest.raises(ValueError, match="no such token file"):
        await saying_where(settings, said.append, refused())
    assert said == []
