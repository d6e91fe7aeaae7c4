"""`berth up` as people run it: its workers, its end, its sudden end, and what it remembers after that."""

import asyncio
import json
import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from berth import composition
from berth.kit.boot_options import BootOptions
from berth.kit.boot_requests import boot_request
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.topics import BUILD_ENDED
from deploy.servers import Postgres, RabbitMQ, free_port
from tests.support.berth_processes import Up, alive, settled
from tests.support.servers import a_module_database, url_of

FLAGS = ("--hosts", "20", "--build-time", "exponential:0.5")
BUILDS = 100
EMBEDDED = {"BERTH_CELLS": "c1,c2"}
WORKERS = {
    *("placement", "ironic", "scheduler", "control-room"),
    *("conductor.c1", "conductor.c2", "compute.c1", "compute.c2"),
}


@pytest.fixture(scope="module")
def services(rabbitmq: RabbitMQ, postgres: Postgres) -> Iterator[dict[str, str]]:
    with a_module_database(postgres) as database:
        yield {
            "BERTH_AMQP_URL": url_of(rabbitmq),
            "BERTH_DATABASE_URL": database,
            "BERTH_EXCHANGE": f"t{secrets.token_hex(4)}",
            "BERTH_CELLS": "c1,c2",
        }


@pytest.fixture(scope="module")
def first_port() -> int:
    return free_port(in_a_row=len(WORKERS))


@pytest.fixture(scope="module")
def on_services(
    services: dict[str, str], first_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    """One for the tests that only use it, and for the last, which ends it."""
    metrics = {"BERTH_METRICS_HTTP": f"127.0.0.1:{first_port}"}
    with Up(tmp_path_factory.mktemp("services"), services | metrics, *FLAGS) as berth:
        yield berth


@pytest.mark.services
@pytest.mark.slow
def test_given_services_it_runs_every_worker_as_a_process(on_services: Up) -> None:
    workers = on_services.workers()
    assert on_services.log.startswith("layout separate\n")
    assert set(workers) == WORKERS
    assert len({on_services.pid, *workers.values()}) == 1 + len(WORKERS)
    assert all(map(alive, workers.values()))
    shown = Path(f"/proc/{workers['scheduler']}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert shown == [b"berth", b"run", b"scheduler"]

    booted = on_services.berth("boot", "--count", "3", "--wait", "--json")
    assert booted.returncode == 0, booted.stderr
    assert [json.loads(line)["status"] for line in booted.stdout.splitlines()] == ["active"] * 3

    audited = on_services.berth("audit", "check", "--settled")
    assert (audited.returncode, "clean" in audited.stdout) == (0, True), audited.stdout + audited.stderr


@pytest.mark.services
@pytest.mark.slow
async def test_a_stop_during_builds_is_clean_and_the_next_start_continues(
    on_services: Up, services: dict[str, str]
) -> None:
    settings = Settings().having(
        amqp_url=services["BERTH_AMQP_URL"],
        database_url=services["BERTH_DATABASE_URL"],
        exchange=services["BERTH_EXCHANGE"],
        cells=("c1", "c2"),
    )
    earlier = sum((await settled(settings)).builds.values())
    async with asyncio.timeout(120):
        assert await ask_for(BUILDS, settings) > BUILDS // 2
        assert await asyncio.to_thread(on_services.stop, signal.SIGTERM, 20.0) == 0
        assert complaints(on_services) == []
        await asyncio.to_thread(on_services.start)
        found = await settled(settings, 60.0, builds=earlier + BUILDS)
        assert not found.breaches
        assert found.builds == {"active": earlier + BUILDS}


def complaints(berth: Up) -> list[str]:
    reply = berth.log.partition("berth is up")[2].splitlines()[1:]
    return [line for line in reply if not line.startswith("the control room is at")]


@pytest.mark.services
@pytest.mark.slow
def test_every_worker_serves_metrics_at_its_port_also_after_a_restart(
    on_services: Up, first_port: int
) -> None:
    sent = dict(re.findall(r"^  (\S+): process \d+, metrics at (\S+)$", on_services.log, re.M))
    ports = range(first_port, first_port + len(WORKERS))
    assert set(sent) == WORKERS
    assert sorted(sent.values()) == [f"http://127.0.0.1:{port}/metrics" for port in ports]
    os.kill(on_services.workers()["scheduler"], signal.SIGKILL)
    assert on_services.berth("boot", "--wait").returncode == 0
    for worker in ("placement", "scheduler"):
        assert f'worker="{worker}"' in httpx.get(sent[worker], trust_env=False).text
    assert "scheduler: ended with signal SIGKILL; starting it again" in on_services.log


@pytest.mark.services
@pytest.mark.slow
def test_when_it_is_killed_its_workers_end_too(on_services: Up) -> None:
    workers = on_services.workers()
    on_services.stop(signal.SIGKILL)
    on_services.wait_until(lambda: not any(map(alive, workers.values())), "its workers have ended", 20.0)


async def test_an_embedded_berth_serves_other_processes_and_loses_no_build_when_it_is_killed(
    tmp_path: Path,
) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/metrics"
    settings = Settings().having(
        cells=("c1", "c2"), simulator={"hosts": 20}, state_dir=str(tmp_path / ".berth")
    )
    with Up(tmp_path, EMBEDDED | {"BERTH_METRICS_HTTP": f"127.0.0.1:{port}"}, *FLAGS) as berth:
        booted = await asyncio.to_thread(berth.berth, "boot", "--wait")
        assert booted.returncode == 0, booted.stderr
        assert " active on c" in booted.stdout
        assert f"metrics at {url}\n" in berth.log
        sent = (await asyncio.to_thread(httpx.get, url, trust_env=False)).text
        assert all(f'worker="{worker}"' in sent for worker in ("placement", "scheduler"))

        async with asyncio.timeout(120):
            unfinished = await ask_for(BUILDS, settings)
            berth.stop(signal.SIGKILL)
            assert unfinished > BUILDS // 2
            await asyncio.to_thread(berth.start)
            found = await settled(settings, 60.0, builds=BUILDS + 1)
            assert not found.breaches
            assert found.builds == {"active": BUILDS + 1}
            assert await asyncio.to_thread(berth.stop) == 0
        gone = await asyncio.to_thread(berth.berth, "boot", "--wait")
        assert (gone.returncode, "no berth answers at" in gone.stderr) == (1, True)


async def ask_for(boots: int, settings: Settings) -> int:
    """Have so many accepted; some have ended then, some are being built, some were only just accepted."""
    requests = [boot_request(BootOptions(vcpus=1, memory_mb=512, disk_gb=1)) for _ in range(boots)]
    async with Bus(composition.transport(settings, "test")) as bus:
        ended = await bus.listen(BUILD_ENDED.at(reply_to=""))
        await bus.publish(*requests[: boots // 2])
        message = {(await ended.get()).build for _ in range(10)}
        await bus.publish(*requests[boots // 2 :])
        return boots - len(message)
