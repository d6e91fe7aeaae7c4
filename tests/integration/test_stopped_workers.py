"""Workers are stopped or killed one at a time under load: builds continue with the other replica."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from berth.loadtest import Boot, Load, LoadPlan
from berth.process_watch import EXIT_BLOCKED
from berth.services import SupervisedProcess, Supervisor
from berth.settings import Settings
from tests.support.berth_processes import running
from tests.support.replicas import ReplicatedBerth, WorkerProcess, replicated
from tests.support.waiting import until

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.services, pytest.mark.slow]

LATE_SECONDS = 5.0
# documented order of an upgrade: workers that answer queries before workers that send them
UPGRADE = ("placement", "conductor", "compute", "scheduler")


def a_cloud(amqp_url: str, database_url: str, bus_name: str, directory: Path) -> Settings:
    return Settings().having(
        amqp_url=amqp_url,
        database_url=database_url,
        exchange=bus_name,
        cells=("c1",),
        simulator={"hosts": 200, "fail": 0.1, "build_time": "exponential:0.2"},
        heartbeat=2.0,
        state_dir=str(directory),
        log_level="info",
        log_format="json",
    )


@dataclass
class LoadThroughStops:
    """Boots at a steady rate from outside, while replicas are stopped and started again one at a time."""

    berth: ReplicatedBerth
    rate: float
    boots: dict[str, Boot] = field(default_factory=dict)

    async def run(self, replicas: Sequence[WorkerProcess], number: signal.Signals) -> None:
        """Stop each replica, start it again, and wait until it serves; then end the load."""
        load = Load(self.berth.bus, LoadPlan(boots=100_000, rate=self.rate, patience=60.0))
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(load.run())
            await until(lambda: load.ended > self.rate)
            for replica in replicas:
                await replica.stop(number)
                await replica.start()
                await until(replica.serves, f"{replica.role} serves again")
            asked = load.now()
            await until(lambda: all(boot.ended for boot in load.boots.values() if boot.asked < asked))
            loading.cancel()
        self.boots = {build: boot for build, boot in load.boots.items() if boot.asked < asked}

    @property
    def late(self) -> list[float]:
        return [boot.latency for boot in self.boots.values() if boot.latency > LATE_SECONDS]

    @property
    def share(self) -> float:
        return len(self.late) / len(self.boots)


@pytest.mark.soak
async def test_no_build_is_late_because_a_replica_is_stopped(
    amqp_url: str, database_url: str, bus_name: str, tmp_path: Path
) -> None:
    async with replicated(a_cloud(amqp_url, database_url, bus_name, tmp_path), tmp_path) as berth:
        stopped = [replica for replica in berth.replicas if replica.role.worker != "compute"]
        load = LoadThroughStops(berth, rate=20.0)
        await load.run(stopped, signal.SIGTERM)
        assert len(load.boots) >= 100
        assert load.late == []
        assert {boot.status for boot in load.boots.values()} == {"active"}
        # Returned messages do not count as those of a crashed process, which are handled one at a time.
        # RabbitMQ itself counts the few that it was delivering while their consumer was cancelled.
        redelivered = sum(replica.redelivered for replica in berth.replicas)
        assert redelivered <= len(load.boots) / 50, redelivered
        seconds = [replica.seconds[0] for replica in stopped]
        assert max(seconds) < LATE_SECONDS, seconds


@pytest.mark.soak
@pytest.mark.parametrize("build_time", ["exponential:0.2", "exponential:1.0"])
async def test_stopping_delays_no_more_builds_than_killing(
    amqp_url: str, database_url: str, bus_name: str, tmp_path: Path, build_time: str
) -> None:
    """Replicas, then all workers in the order of an upgrade: stopped and killed in turns, three times."""
    settings = a_cloud(amqp_url, database_url, bus_name, tmp_path).having(
        simulator={"build_time": build_time, "hosts": 400}
    )
    async with replicated(settings, tmp_path) as berth:
        in_order = sorted(berth.replicas, key=lambda replica: UPGRADE.index(replica.role.worker))
        for chosen in ([r for r in in_order if r.role.worker != "compute"], in_order):
            late: dict[signal.Signals, list[float]] = {signal.SIGTERM: [], signal.SIGKILL: []}
            for _ in range(3):
                for number, shares in late.items():
                    load = LoadThroughStops(berth, rate=20.0)
                    await load.run(chosen, number)
                    shares.append(load.share)
            log.warning("late builds by signal, of %d processes: %s", len(chosen), late)
            assert sum(late[signal.SIGTERM]) <= sum(late[signal.SIGKILL]) + 0.01, late


@pytest.mark.soak
async def test_a_worker_whose_event_loop_is_blocked_is_restarted(
    servers: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = servers.having(simulator={"hosts": 5}, log_level="warning")
    reports: list[str] = []

    class BlockableSupervisor(Supervisor):
        async def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> SupervisedProcess:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-c", _BLOCKABLE, *command[1:], env=environment, stdin=asyncio.subprocess.PIPE
            )

    async with running(settings, lambda of: BlockableSupervisor(of, reports.append)) as berth:
        os.kill(berth.supervisor.processes()["scheduler"][0], signal.SIGUSR2)  # blocks the event loop
        expected = f"scheduler: ended with exit code {EXIT_BLOCKED}, because its event loop was blocked"
        await until(lambda: any(report.startswith(expected) for report in reports), picture=lambda: reports)
        outcome = await Load(berth.bus, LoadPlan(boots=5, patience=60.0)).run()
        assert outcome.statuses["active"] == 5
    logged = capfd.readouterr().err
    assert "the event loop has been blocked for 3 s; the process ends with exit code 70" in logged
    assert "in never_ends" in logged


_BLOCKABLE = """
import signal, time
from berth import process_watch
from berth.__main__ import main

process_watch.BLOCKED_SECONDS = 3.0

def never_ends(*_):
    while True:
        time.sleep(0.01)

signal.signal(signal.SIGUSR2, never_ends)  # in the main thread, which runs the event loop
main()
"""
