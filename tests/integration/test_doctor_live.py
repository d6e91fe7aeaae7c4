"""`berth doctor` on a real RabbitMQ broker: alarms, feature flags and deprecated features."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from berth import composition
from berth.doctor import looking
from berth.doctor.judgement import judged
from berth.doctor.management import read_management
from berth.doctor.seen import ManagementSeen
from berth.kit.findings import Finding
from berth.problems import reading
from berth.settings import Settings
from bus.clock import Clock
from bus.rabbit import RabbitTransport
from deploy.servers import RabbitMQ, find_rabbitmq, private_directory
from tests.support.envelopes import an_envelope, publish
from tests.support.servers import installed, rabbitmqctl_in
from tests.support.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.slow]

SET = 'vm_memory_monitor:set_vm_memory_high_watermark({}), rabbit_disk_monitor:set_disk_free_limit("{}").'
ALARMS, NO_ALARMS = SET.format("0.000001", "1000000GB"), SET.format("0.6", "50MB")


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    directory = private_directory("berth-doctor-")
    with RabbitMQ(directory / "rabbitmq", management=True) as broker:
        # Quorum queues report their messages to the management API every 5 s by default.
        broker.control("eval", "application:set_env(rabbit, quorum_tick_interval, 300).")
        yield broker
        broker.kill()  # its clean stop takes 6 s, and its data are deleted
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def settings(
    broker: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Settings]:
    """The settings of a berth whose queues exist and have consumers, so that the doctor asks its workers."""
    monkeypatch.setattr(reading, "ANSWER_SECONDS", 0.05)  # no worker runs
    nowhere = "postgresql://berth:x@127.0.0.1:1/berth"
    settings = Settings().having(
        amqp_url=broker.url, database_url=nowhere, state_dir=str(tmp_path), cells=("c1",)
    )
    transport = RabbitTransport(broker.url, declares_shared=True)
    await transport.open()
    for specs in composition.queues(settings).values():
        for spec in specs:
            await transport.consume(spec, 1)
    yield settings
    await transport.close()


async def examined(settings: Settings, broker: RabbitMQ | None = None) -> Mapping[str, Finding]:
    """Return the findings about RabbitMQ that are not fine, by their text; with a broker, read its management
    API. The doctor takes 3 s; waiting for a reply of a broker that reads nothing would take more than 60 s.
    """
    async with asyncio.timeout(60.0):
        findings = judged(await looking.inspect(settings, management=broker.management_url if broker else ""))
    assert [finding for finding in findings if finding.about.startswith("RabbitMQ")]
    return {found.says: found for found in findings if found.level != "fine" and "RabbitMQ" in found.about}


async def reported(broker: RabbitMQ) -> ManagementSeen:
    """Return what the management API reports, which is the state of a moment ago."""
    seen = await read_management(broker.management_url, broker.url, Clock())
    assert seen is not None
    return seen


async def reports(broker: RabbitMQ, queue: str, *, messages: int = 0, readers: int = 0) -> bool:
    found = [each for each in (await reported(broker)).of_agents if each.name == queue]
    return [(each.messages, each.readers) for each in found] == [(messages, readers)]


async def test_queues_that_an_agent_left_behind_are_named_and_deleted_by_the_advice(
    settings: Settings, broker: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = composition.agent_queues("c1", "gone")[:2]  # to delete one takes a second
    there = composition.agent_queues("c1", "there")
    [gateway] = [worker for worker in composition.tables_of_conductor("c1") if worker.name == "gateway.c1"]
    shared = [spec for row in gateway.consumes if (spec := gateway.queue_of(row, "x")).durable]
    agent, transport = RabbitTransport(broker.url), RabbitTransport(broker.url)
    await agent.open()
    await agent.declare(*gone)
    await agent.close()
    await transport.open()
    try:
        for spec in there:
            await transport.consume(spec, 1)
        for number in range(2):
            await publish(transport, an_envelope(number, "agent.build.c1.gone"))

        async def advice(about: str, text: str) -> str:
            async with asyncio.timeout(60.0):
                findings = judged(await looking.inspect(settings, management=broker.management_url))
            return next((found.do for found in findings if found.about == about and text in found.says), "")

        queue = "agent.c1.gone:agent.build.c1.gone (2 messages)"
        await until(lambda: reports(broker, "agent.c1.gone:agent.build.c1.gone", messages=2))
        assert await advice("queues agent.c1.gone", queue)
        for spec in shared:
            await transport.consume(spec, 1)
        for spec in shared:
            await until(lambda: reports(broker, spec.name, readers=1))  # noqa: B023 - awaited here
        do = await advice("queues agent.c1", queue)
        assert do

        rabbitmqctl_in(tmp_path, broker)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        ran = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", do.split("`")[1]], capture_output=True, text=True, timeout=120
        )
        assert ran.returncode == 0, ran.stderr
        names = set((await asyncio.to_thread(broker.control, "list_queues", "name")).split())
        assert not names.intersection(spec.name for spec in gone)
        assert names.issuperset(spec.name for spec in there)
    finally:
        await transport.close()


# Last: the management API reports these alarms for some seconds after their end.
async def test_alarms_are_named_with_and_without_the_management_api(
    settings: Settings, broker: RabbitMQ
) -> None:
    await asyncio.to_thread(broker.control, "eval", ALARMS)
    try:
        found = await examined(settings)
        (alarm,) = [says for says in found if "alarm" in says]
        assert alarm in {
            f"It has an alarm: low on {both}."
            for both in ("memory & disk", "disk & memory", "memory", "disk")
        }
        assert found[alarm].level == "broken"
        expected = {f"It has an alarm: too little {what} at rabbit@localhost." for what in ("memory", "disk")}

        async def all_reported() -> bool:
            return len((await reported(broker)).alarms) == len(expected)

        await until(all_reported)
        assert expected <= (await examined(settings, broker)).keys()
    finally:
        await asyncio.to_thread(broker.control, "eval", NO_ALARMS)
