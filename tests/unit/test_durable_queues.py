"""A message that a shovel of docs/howto/another-broker.md publishes reaches one durable queue of workers, by
the exchange and the routing key that the old broker has verified.
"""

import json
import subprocess
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from berth import composition
from berth.ferry.crossings import Way
from berth.settings import Settings
from bus.protocol import QueueSpec
from bus.rabbit.topology import BrokerNames
from bus.worker import cell_of
from tests.support.servers import find_jq, installed
from tests.support.snippets import ROOT, snippets


def common_keys(queues: Iterable[QueueSpec]) -> list[tuple[str, str]]:
    """Return the pairs of durable queues that a message with one routing key can reach."""
    durable = {queue.name: queue.keys for queue in queues if queue.durable}
    return [
        (one, other)
        for (one, keys), (other, more) in combinations(durable.items(), 2)
        if any(_overlap(key.split("."), another.split(".")) for key in keys for another in more)
    ]


def _overlap(key: list[str], other: list[str]) -> bool:
    """Return whether both binding keys match some routing key. A `#` may stand for any words."""
    if "#" in key or "#" in other:
        return True
    return len(key) == len(other) and all(
        word == another or "*" in (word, another) for word, another in zip(key, other, strict=True)
    )


def queues_of_workers() -> list[QueueSpec]:
    settings = Settings().having(
        amqp_url="amqp://localhost/", database_url="postgresql://localhost/berth", cells=("c1", "c2")
    )
    queues = [queue for found in composition.queues(settings).values() for queue in found]
    return [*queues, *composition.agent_queues("c1", "a1"), *composition.agent_queues("c1", "a2")]


def test_no_routing_key_reaches_two_durable_queues_of_workers() -> None:
    queues = queues_of_workers()
    assert len(queues) > 50
    assert common_keys(queues) == []
    crossings = composition.crossings_of("c1")
    for way, at_broker in (
        (Way.IN, [queue for queue in queues if cell_of(queue.name) != "c1"]),
        (Way.OUT, [queue for queue in queues if cell_of(queue.name) == "c1"]),
    ):
        of_ferry = [crossing.queue for crossing in crossings if crossing.way is way]
        assert of_ferry
        assert common_keys([*at_broker, *of_ferry]) == []


def test_an_overlap_is_found() -> None:
    one, other = QueueSpec("a", ("build.*", "x")), QueueSpec("b", ("build.ended",))
    assert common_keys([one, other]) == [("a", "b")]
    assert common_keys([one, QueueSpec("b", ("build.ended.c1", "y"))]) == []


def shovels(queues: Iterable[dict[str, Any]], directory: Path) -> dict[str, dict[str, str]]:
    """Return the shovels, by queue, that the page's command makes of queues as `rabbitmqctl` lists them."""
    (directory / "queues.json").write_text(json.dumps(list(queues)))
    [command] = [
        block.text.rpartition("rabbitmqctl")[0]
        for block in snippets(ROOT / "docs/howto/another-broker.md")
        if "shovels.json" in block.text
    ]
    environment = {"old": "amqp://old/%2F", "new": "amqp://new/%2F", "PATH": str(Path(find_jq()).parent)}
    subprocess.run(["/bin/sh", "-euc", command], cwd=directory, env=environment, check=True)
    made = json.loads((directory / "shovels.json").read_text())
    assert made["vhosts"] == [{"name": shovel["vhost"]} for shovel in made["parameters"][:1]]
    return {shovel["value"]["src-queue"]: shovel["value"] for shovel in made["parameters"]}


def a_queue(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "durable": True, "exclusive": "", "type": "quorum", "messages": 0, **more}


@pytest.mark.parametrize("exchange", ["berth", "lab"])
def test_only_shovels_of_clients_have_a_destination(exchange: str, tmp_path: Path) -> None:
    installed(find_jq)
    names = BrokerNames(exchange)
    of_clients = [
        names.queue(name) for name in ("client.shop.0", "client.agent.99", "client.build.ended.*.x")
    ]
    of_workers = [names.queue(queue.name) for queue in queues_of_workers() if queue.durable]
    others = [names.dead, names.unrouted, f"{names.delay}.1000", names.queue("ferry.c1:build.placed.c1")]
    all_queues = [*of_workers, *others, *of_clients]
    made = shovels((a_queue(name, messages=1) for name in all_queues), tmp_path)
    assert made.keys() == set(all_queues)
    for name, shovel in made.items():
        target = {"dest-queue": name} if name in of_clients else {}
        to = {key: value for key, value in shovel.items() if key.startswith("dest-") and "uri" not in key}
        assert to == {"dest-protocol": "amqp091", **target}
        assert (shovel["src-uri"], shovel["dest-uri"]) == ("amqp://old/%2F", "amqp://new/%2F")
        assert shovel["ack-mode"] == "on-confirm"


def test_queues_that_no_shovel_can_or_need_read_have_none(tmp_path: Path) -> None:
    installed(find_jq)
    made = shovels(
        [
            a_queue("agent.c1.a:agent.build.c1.a"),
            a_queue("lab:agent.c1.a:agent.build.c1.a"),
            a_queue("agent.c1.b:agent.build.c1.b", messages=1),
            a_queue("conductor.c1:agent.report.c1"),
            a_queue("log", type="stream"),
            a_queue("client.shop.0", type="classic", exclusive=True),
            a_queue("reply.x.y", type="classic", durable=False),
        ],
        tmp_path,
    )
    assert made.keys() == {"agent.c1.b:agent.build.c1.b", "conductor.c1:agent.report.c1"}
