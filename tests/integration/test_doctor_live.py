"""`berth doctor` on real RabbitMQ brokers: alarms, feature flags and deprecated features."""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from aio_pika import connect

from berth.doctor.judgement import Finding
from deploy.servers import Postgres, RabbitMQ, find_rabbitmq, private_directory
from tests.support.berth_processes import Up
from tests.support.servers import a_module_database, installed

pytestmark = [pytest.mark.services, pytest.mark.slow]

LIMITS = {
    "memory": ("set_vm_memory_high_watermark", "0.000001", "0.6"),
    "disk": ("set_disk_free_limit", "1000000GB", "50MB"),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    directory = private_directory("berth-doctor-")
    # The first start enables only this feature flag, as on a broker that was upgraded.
    with RabbitMQ(directory / "rabbitmq", management=True, feature_flags=["quorum_queue"]) as broker:
        yield broker
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def berth(
    broker: RabbitMQ, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    with a_module_database(postgres) as database:
        environment = {"BERTH_AMQP_URL": broker.url, "BERTH_DATABASE_URL": database, "BERTH_CELLS": "c1"}
        with Up(tmp_path_factory.mktemp("doctor"), environment, "--hosts", "2") as berth:
            yield berth


def examined(berth: Up, *arguments: str) -> Mapping[str, Finding]:
    """Return the findings that are not fine, by their text; assert that the doctor answers within 20 s."""
    began = time.monotonic()
    ran = berth.berth("doctor", "--json", *arguments)
    seconds = time.monotonic() - began
    assert seconds < 20.0, f"it took {seconds:.1f} s"
    findings = [Finding(**finding) for finding in json.loads(ran.stdout)["findings"]]
    return {finding.says: finding for finding in findings if finding.level != "fine"}


@pytest.fixture(params=list(LIMITS))
def alarm(request: pytest.FixtureRequest, broker: RabbitMQ) -> Iterator[str]:
    """Set an alarm while the test runs."""
    command, low, usual = LIMITS[request.param]
    broker.control(command, low)
    yield request.param
    broker.control(command, usual)


def test_an_alarm_is_named(berth: Up, alarm: str) -> None:
    found = examined(berth)
    assert [says for says in found if "alarm" in says] == [f"It has an alarm: low on {alarm}."]
    assert found[f"It has an alarm: low on {alarm}."].level == "broken"
    assert not [says for says in found if "does not answer" in says], "workers are not to blame"


def test_the_management_api_names_the_nodes_with_an_alarm(berth: Up, broker: RabbitMQ, alarm: str) -> None:
    alarms = f"It has an alarm: too little {alarm} at rabbit@localhost."
    deadline = time.monotonic() + 60.0
    while alarms not in (found := examined(berth, "--management", broker.management_url)):
        assert time.monotonic() < deadline, found  # the API reports the state of some seconds ago
    assert found[alarms].level == "broken"


def test_feature_flags_that_are_not_enabled_are_named(berth: Up, broker: RabbitMQ) -> None:
    found = examined(berth, "--management", broker.management_url)
    (flags,) = [says for says in found if says.startswith("Feature flags")]
    assert "quorum_queue," not in flags
    assert "khepri_db" not in flags, "it is experimental in RabbitMQ 4.0"
    broker.control("enable_feature_flag", "all")
    after = examined(berth, "--management", broker.management_url)
    assert not [says for says in after if says.startswith("Feature flags")]


def test_deprecated_features_in_use_are_named(berth: Up, broker: RabbitMQ) -> None:
    """berth itself uses none; another client's transient queue is one."""
    assert not [says for says in examined(berth, "--management", broker.management_url) if "Deprecated" in says]

    async def declare() -> None:
        async with await connect(broker.url) as connection:
            channel = await connection.channel()
            await channel.declare_queue("of-another", durable=False, exclusive=False)

    asyncio.run(declare())
    found = examined(berth, "--management", broker.management_url)
    if reports_deprecated_features(broker):
        assert "Deprecated features in use: transient_nonexcl_queues." in found
    else:
        assert not [says for says in found if "Deprecated" in says]


def reports_deprecated_features(broker: RabbitMQ) -> bool:
    return Path(find_rabbitmq().server).resolve().parts[-3] >= "rabbitmq_server-3.13"
