"""The private servers themselves: they answer, keep their data, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from berth.broker_users import Management
from deploy.processes import environment_without
from deploy.servers import BinariesMissing, find_binaries, find_postgres, find_rabbitmq

pytestmark = [pytest.mark.services, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def binaries() -> None:
    try:
        find_binaries()
    except BinariesMissing as missing:
        if os.environ.get("CI") and not _external():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def _external() -> bool:
    return bool(os.environ.get("BERTH_TEST_AMQP_URL") or os.environ.get("BERTH_TEST_DATABASE_URL"))


def _processes() -> dict[int, tuple[int, str]]:
    """Every process that is not a zombie, with its parent and command line."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for line in listing.splitlines():
        pid, parent, state, *command = line.split(maxsplit=3)
        if not state.startswith("Z"):
            found[int(pid)] = (int(parent), command[0] if command else "")
    return found


def _descendants(root: int) -> set[int]:
    processes = _processes()
    family = {root}
    while True:
        more = {pid for pid, (parent, _) in processes.items() if parent in family} - family
        if not more:
            return family - {root}
        family |= more


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _eventually(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _assert_gone(pids: set[int]) -> None:
    # Erlang's port programs notice the end of their VM by themselves, a moment after it.
    _eventually(lambda: not pids & _processes().keys())
    left = {pid: command for pid, (_, command) in _processes().items() if pid in pids}
    assert left == {}


def test_command_prints_urls_and_its_servers_end_with_it(directory: Path) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "deploy.servers", "--dir", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert command.stdout is not None
        urls = {}
        for line in command.stdout:
            if line.startswith("export "):
                key, _, value = line.removeprefix("export ").strip().partition("=")
                urls[key] = value
            if "BERTH_DATABASE_URL" in urls:
                break
        names = ("BERTH_AMQP_URL", "BERTH_MANAGEMENT_URL", "BERTH_DATABASE_URL")
        ports = [urlsplit(urls[name]).port or 0 for name in names]
        assert all(_listening(port) for port in ports)
        management = Management(urls["BERTH_MANAGEMENT_URL"], urls["BERTH_AMQP_URL"])
        assert asyncio.run(management.answers())
        environment = environment_without("RABBITMQ_", "ERL_") | urls
        control = find_rabbitmq().server.with_name("rabbitmqctl")
        asked = subprocess.run(
            [control, "--quiet", "list_users"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert asked.stdout.split()[2] == "guest", asked.stderr
        family = _descendants(command.pid)
        assert family
        command.send_signal(signal.SIGKILL)
        assert command.wait(30) == -signal.SIGKILL
        _assert_gone(family)
        assert not any(_listening(port) for port in ports)
    finally:
        command.kill()
        command.wait()
        if command.stdout is not None:
            command.stdout.close()


def test_missing_binaries_are_reported_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_TEST_RABBITMQ", raising=False)
    monkeypatch.setattr("deploy.postgres.executable", lambda path: False)
    monkeypatch.setattr("deploy.rabbitmq.executable", lambda path: False)
    with pytest.raises(BinariesMissing, match=r"make services.*BERTH_TEST_AMQP_URL"):
        find_rabbitmq()
    with pytest.raises(BinariesMissing, match=r"make services.*BERTH_TEST_DATABASE_URL"):
        find_postgres()
    with pytest.raises(BinariesMissing, match=r"RabbitMQ.*PostgreSQL"):
        find_binaries()
