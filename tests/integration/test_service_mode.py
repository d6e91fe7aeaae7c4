"""`berth up` as people run it: its workers, its end, its sudden end, and what it remembers after that."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from berth import wiring
from berth.commands.builds import boot_request
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.topics import BUILD_ENDED
from deploy.servers import Postgres, RabbitMQ, free_port
from tests.support.berth_processes import Up, alive, settled
from tests.support.servers import a_module_database, url_of

FLAGS = ("--hosts", "10", "--build-time", "constant:0.1")
EMBEDDED = {"BERTH_CELLS": "c1,c2"}
WORKERS = {"placement", "ironic", "scheduler", "conductor.c1", "conductor.c2", "compute.c1", "compute.c2"}


@pytest.fixture
def services(rabbitmq: RabbitMQ, postgres: Postgres, bus_name: str) -> Iterator[dict[str, str]]:
    with a_module_database(postgres) as database:
        yield {
            "BERTH_AMQP_URL": url_of(rabbitmq),
            "BERTH_DATABASE_URL": database,
            "BERTH_EXCHANGE": bus_name,
            "BERTH_CELLS": "c1,c2",
        }


@pytest.mark.services
@pytest.mark.slow
def test_given_services_it_runs_every_worker_as_a_process(services: dict[str, str], tmp_path: Path) -> None:
    with Up(tmp_path, services, *FLAGS) as berth:
        workers = berth.workers()
        assert set(workers) == WORKERS
        assert len({berth.pid, *workers.values()}) == 1 + len(WORKERS)
        assert all(map(alive, workers.values()))

        booted = berth.berth("boot", "--count", "3", "--wait", "--json")
        assert booted.returncode == 0, booted.stderr
        assert [json.loads(line)["status"] for line in booted.stdout.splitlines()] == ["active"] * 3

        assert berth.stop(signal.SIGTERM, seconds=20) == 0
        assert not any(map(alive, workers.values()))
        assert complaints(berth) == []

        audited = berth.berth("audit", "--settled")
        assert (audited.returncode, "clean" in audited.stdout) == (0, True), audited.stdout + audited.stderr


@pytest.mark.services
@pytest.mark.slow
async def test_told_to_end_in_the_middle_of_200_builds_it_does_so_quietly_and_goes_on_at_the_next_start(
    services: dict[str, str], tmp_path: Path
) -> None:
    settings = Settings().having(
        amqp_url=services["BERTH_AMQP_URL"],
        database_url=services["BERTH_DATABASE_URL"],
        exchange=services["BERTH_EXCHANGE"],
        cells=("c1", "c2"),
    )
    with Up(tmp_path, services, "--hosts", "20", "--build-time", "exponential:0.5") as berth:
        async with asyncio.timeout(55):
            assert await ask_for(200, settings) > 100
            assert await asyncio.to_thread(berth.stop, signal.SIGTERM, 20.0) == 0
            assert complaints(berth) == []
            await asyncio.to_thread(berth.start)
            found = await settled(settings, 30.0, builds=200)
            assert not found.breaches
            assert found.builds == {"active": 200}


def complaints(berth: Up) -> list[str]:
    """What it and its workers had to say since it was up."""
    return berth.log.partition("berth is up")[2].splitlines()[1:]


@pytest.mark.services
@pytest.mark.slow
def test_when_it_is_killed_its_workers_end_too(services: dict[str, str], tmp_path: Path) -> None:
    with Up(tmp_path, services, *FLAGS) as berth:
        workers = berth.workers()
        berth.stop(signal.SIGKILL)
        berth.wait_until(lambda: not any(map(alive, workers.values())), "its workers have ended", 20.0)


@pytest.mark.services
@pytest.mark.soak  # always: the next one kills one too
def test_a_worker_that_dies_is_started_again(services: dict[str, str], tmp_path: Path) -> None:
    with Up(tmp_path, services, *FLAGS) as berth:
        os.kill(berth.workers()["scheduler"], signal.SIGKILL)
        booted = berth.berth("boot", "--wait")
        assert booted.returncode == 0, booted.stdout + booted.stderr
        assert "scheduler: ended with signal SIGKILL; starting it again" in berth.log
        assert berth.stop() == 0


@pytest.mark.services
@pytest.mark.slow
def test_every_worker_tells_its_metrics_at_a_port_of_its_own(
    services: dict[str, str], tmp_path: Path
) -> None:
    first = free_port(in_a_row=len(WORKERS))
    with Up(tmp_path, {**services, "BERTH_METRICS_PORT": str(first)}, *FLAGS) as berth:
        told = dict(re.findall(r"^  (\S+): process \d+, metrics at (\S+)$", berth.log, re.M))
        ports = range(first, first + len(WORKERS))
        assert set(told) == WORKERS
        assert sorted(told.values()) == [f"http://127.0.0.1:{port}/metrics" for port in ports]
        os.kill(
            berth.workers()["scheduler"], signal.SIGKILL
        )  # the one that is started in its place tells there
        assert berth.berth("boot", "--wait").returncode == 0
        for worker in ("placement", "scheduler"):
            assert f'worker="{worker}"' in httpx.get(told[worker], trust_env=False).text
        assert berth.stop() == 0


def test_embedded_all_tell_their_metrics_at_one_port(tmp_path: Path) -> None:
    port = free_port()
    with Up(tmp_path, {**EMBEDDED, "BERTH_METRICS_PORT": str(port)}, *FLAGS) as berth:
        url = f"http://127.0.0.1:{port}/metrics"
        assert f"metrics at {url}\n" in berth.log
        assert berth.berth("boot", "--wait").returncode == 0
        told = httpx.get(url, trust_env=False).text
        for worker in ("placement", "scheduler"):
            assert f'worker="{worker}"' in told
        assert berth.stop() == 0


def test_embedded_other_processes_come_in_by_the_socket(tmp_path: Path) -> None:
    with Up(tmp_path, EMBEDDED, *FLAGS) as berth:
        booted = berth.berth("boot", "--wait")
        assert booted.returncode == 0, booted.stderr
        assert " active on c" in booted.stdout
        refused = berth.berth("boot", "--vcpus", "999", "--wait")
        assert refused.returncode == 1
        assert refused.stdout.startswith("no host: ")
        assert berth.stop(signal.SIGTERM, seconds=20) == 0
    gone = berth.berth("boot", "--wait")
    assert gone.returncode == 1
    assert "no berth answers at" in gone.stderr


async def test_embedded_a_kill_in_the_middle_of_200_builds_costs_none(tmp_path: Path) -> None:
    flags = ("--hosts", "20", "--build-time", "exponential:0.5")
    settings = Settings().having(cells=("c1", "c2"), hosts=20, state_dir=str(tmp_path / ".berth"))
    with Up(tmp_path, EMBEDDED, *flags) as berth:
        async with asyncio.timeout(55):
            unfinished = await ask_for(200, settings)
            berth.stop(signal.SIGKILL)
            assert unfinished > 100
            await asyncio.to_thread(berth.start)
            found = await settled(settings, 30.0, builds=200)
            assert not found.breaches
            assert found.builds == {"active": 200}
            assert await asyncio.to_thread(berth.stop) == 0


async def ask_for(boots: int, settings: Settings) -> int:
    """Have so many accepted; some have ended then, some are being built, some were only just accepted."""
    requests = [boot_request(1, 512, 1, "", (), 1, "", "") for _ in range(boots)]
    async with Bus(wiring.transport(settings, "test")) as bus:
        ended = await bus.listen(BUILD_ENDED.at(reply_to=""))
        await bus.publish(*requests[: boots // 2])
        heard = {(await ended.get()).build for _ in range(10)}
        await bus.publish(*requests[boots // 2 :])
        return boots - len(heard)
