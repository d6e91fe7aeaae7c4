"""Follows docs/howto/high-availability.md on three RabbitMQ nodes and a PostgreSQL with a standby.

The page's `ssh MACHINE COMMAND` is a program of this test, which kills, starts or promotes the server of that
name. The page's other commands are executed as they are.
"""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.postgres import Postgres
from deploy.rabbitmq import RabbitMQCluster
from tests.integration.page_reader import PageReader
from tests.support.snippets import ROOT, snippets
from tests.support.standby import NAME, Standby, execute, url_of_both

pytestmark = [pytest.mark.services, pytest.mark.soak]

PAGE = ROOT / "docs/howto/high-availability.md"
BROKERS = "amqp://berth:secret@rabbit1:5672,rabbit2:5672,rabbit3:5672/"
DATABASES = "postgresql://berth:secret@db1:5432,db2:5432/berth?target_session_attrs=read-write"
SECONDS = 300.0


class Machines:
    """Executes the page's `ssh` commands. They arrive through one named pipe, and the exit code is returned
    through another.
    """

    def __init__(
        self, directory: Path, brokers: RabbitMQCluster, primary: Postgres, standby: Standby
    ) -> None:
        self.brokers, self.primary, self.standby = brokers, primary, standby
        self.reader: PageReader | None = None
        self.executed: list[str] = []
        self._requests, self._codes = directory / "requests", directory / "codes"
        for pipe in (self._requests, self._codes):
            os.mkfifo(pipe)
        self.tools = directory / "tools"
        self.tools.mkdir()
        script = f'#!/bin/sh\necho "$*" >{self._requests}\nexit "$(cat {self._codes})"\n'
        (self.tools / "ssh").write_text(script)
        (self.tools / "ssh").chmod(0o755)

    def serve(self) -> None:
        while command := self._requests.read_text().strip():
            try:
                self._execute(command)
                self.executed.append(command)
                code = 0
            except Exception as problem:
                self.executed.append(f"{command}: {problem!r}")
                code = 1
            self._codes.write_text(f"{code}\n")

    def end(self) -> None:
        self._requests.write_text("\n")

    def _execute(self, command: str) -> None:
        node = self.brokers.nodes[0]
        assert self.reader is not None
        match command.split():
            case ["rabbit1", "systemctl", "kill", "--signal=KILL", "rabbitmq-server"]:
                node.kill()
            case ["rabbit1", "systemctl", "start", "rabbitmq-server"]:
                node.start()
            case ["db1", "systemctl", "kill", "--signal=KILL", "postgresql"]:
                self.primary.kill()
            case ["db2", "pg_ctlcluster", "15", "main", "promote"]:
                asyncio.run(self.standby.promote())
            case ["worker1", "systemctl", "kill", "--signal=KILL", *workers]:
                for worker in workers:
                    name = worker.replace("-", "@").split("@")[1]
                    self.reader.kill(f"berth run {name}")
            case _:
                raise AssertionError("not a command of the page")


@pytest.fixture
def machines(
    directory: Path, brokers: RabbitMQCluster, primary: Postgres, standby: Standby
) -> Iterator[Machines]:
    asyncio.run(execute(primary, f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({NAME})'"))
    asyncio.run(execute(primary, "SELECT pg_reload_conf()"))
    made = Machines(directory, brokers, primary, standby)
    thread = threading.Thread(target=made.serve)
    thread.start()
    yield made
    made.end()
    thread.join()


def test_the_page_on_high_availability_is_true(machines: Machines, tmp_path: Path) -> None:
    services = {BROKERS: machines.brokers.url, DATABASES: url_of_both(machines.primary, machines.standby)}
    with PageReader(tmp_path, services, tools=machines.tools, seconds=SECONDS) as reader:
        machines.reader = reader
        for snippet in snippets(PAGE):
            reader.read(snippet)
    assert len(machines.executed) == 5
