"""Programs outside berth, with real credentials: the examples of features/clients/README.md, and what a
client, a cell and an agent are refused (docs/tenancy.md)."""

import json
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pika
import pytest
from msgspec.structs import replace
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from berth.configuration import read
from bus.protocol import encode
from deploy.servers import Postgres, RabbitMQ, find_rabbitmq, private_directory
from tests.support.berth_processes import ROOT, Up
from tests.support.ids import uid
from tests.support.placement_builders import a_report
from tests.support.servers import a_module_database, installed

PAGE = ROOT / "features/clients/README.md"

pytestmark = [pytest.mark.services, pytest.mark.slow]


@dataclass
class BerthWithClients:
    berth: Up
    broker: RabbitMQ
    database: str

    def command(self, *arguments: str) -> str:
        ran = self.berth.berth(*arguments)
        assert ran.returncode == 0, ran.stderr + ran.stdout
        return ran.stdout

    @property
    def urls(self) -> dict[str, str]:
        """The URL by which each subject reaches RabbitMQ."""
        directory = self.berth.directory
        cell = read(file=directory / "c9.toml", environment={}, flags={}).settings
        return {
            "client": (directory / "shop.url").read_text().strip(),
            "cell": cell.bus.amqp_url,
            "agent": read(file=directory / "a1.toml", environment={}, flags={}).settings.bus.amqp_url,
        }


@pytest.fixture(scope="module")
def site(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthWithClients]:
    installed(find_rabbitmq)
    directory, own = private_directory("berth-outsiders-"), tmp_path_factory.mktemp("outsiders")
    # Users are made by the management API: rabbitmqctl takes a second each time (test_new_cell uses it).
    broker = RabbitMQ(directory / "rabbitmq", management=True, samples_often=False)
    with broker, a_module_database(postgres) as database:
        environment = {
            "BERTH_AMQP_URL": broker.url, "BERTH_MANAGEMENT_URL": broker.management_url,
            "BERTH_DATABASE_URL": database, "BERTH_CELLS": "c1,c2",
        }  # fmt: skip
        flags = ("--hosts", "10", "--build-time", "constant:0.1")
        with Up(own, environment, *flags) as berth:
            site = BerthWithClients(berth, broker, database)
            bound = ("--project", "web", "--project", "batch", "--url-file", "shop.url")
            site.command("access", "client", "create", "shop", *bound)
            site.command("cell", "create", "c9")
            site.command("cell", "agent", "create", "c9", "a1")
            yield site
        broker.kill()  # its clean stop takes 6 s, and its data are deleted
    shutil.rmtree(directory, ignore_errors=True)


def example_with(library: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if re.search(rf"^(import|from) {library}\b", block, re.MULTILINE)]
    assert len(found) == 1, f"{PAGE} has one example with {library}"
    return str(found[0])


def printed_by(site: BerthWithClients, example: str) -> str:
    ran = site.berth.run(sys.executable, "-c", example)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("library", "end"),
    [
        ("aio_pika", r"build\.ended\.c[12]\.shop_\w+ .*'status': 'active'.*'host': 'c"),
        ("pika", r"build\.ended\.c[12]\.shop .*'status': 'active'.*'host': 'c"),
        ("features.clients", r"active c[12]-"),
    ],
)
def test_an_example_of_the_page_boots_with_the_permissions_of_a_client(
    site: BerthWithClients, library: str, end: str
) -> None:
    assert re.match(end, printed_by(site, example_with(library)))


BUILD = "5b1c3a52-0c5e-4a0e-9f0b-5f6f2c0f5d3e"
FLAWED = {"request": BUILD, "instances": [BUILD], "flavor": {"name": "f", "vcpus": -1}, "project": "web"}
INVALID: dict[str, tuple[bytes, str]] = {
    "a negative amount": (
        json.dumps({"client": "shop", "do": "boot", "message": FLAWED}).encode(), "flavor.vcpus: ",
    ),
    "another client in the body": (
        json.dumps({"client": "rival", "do": "boot", "message": FLAWED | {"reply_to": "rival"}}).encode(),
        "it came by the key client.shop, and is a message of client.rival",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "why"), INVALID.values(), ids=INVALID.keys())
def test_an_invalid_request_is_answered_to_the_client_that_sent_it(
    site: BerthWithClients, body: bytes, why: str
) -> None:
    with pika.BlockingConnection(pika.URLParameters(site.urls["client"])) as connection:
        channel = connection.channel()
        channel.queue_declare(CLIENT_QUEUE, exclusive=True)
        channel.queue_bind(CLIENT_QUEUE, "berth", "build.unplaceable.shop")
        shown = pika.BasicProperties(message_id="mine", user_id="berth.client.shop")
        channel.basic_publish("berth.clients", "client.shop", body, shown)
        for _, properties, answer in channel.consume(CLIENT_QUEUE, auto_ack=True, inactivity_timeout=30):
            assert answer is not None, "no answer"
            found = json.loads(answer)
            assert found["decision"]["code"] == "invalid" and why in found["reason"]
            assert (properties.correlation_id, found["request"]) == ("mine", BUILD)
            break


# The table of docs/tenancy.md

Attack = Callable[[BlockingChannel], object]


def publishes(key: str, exchange: str = "berth", **properties: Any) -> Attack:
    return lambda channel: channel.basic_publish(exchange, key, b"{}", pika.BasicProperties(**properties))


def binds(own: str, key: str, exchange: str = "berth") -> Attack:
    def attack(channel: BlockingChannel) -> None:
        channel.queue_declare(own, exclusive=True)
        channel.queue_bind(own, exchange, key)

    return attack


def declares(queue: str) -> Attack:
    return lambda channel: channel.queue_declare(queue, exclusive=True)


def consumes(queue: str) -> Attack:
    return lambda channel: channel.basic_get(queue)


def listens_by_an_exchange(own: str) -> Attack:
    def attack(channel: BlockingChannel) -> None:
        channel.exchange_declare(own, "topic", auto_delete=True)
        channel.exchange_bind(own, "berth", "#")

    return attack


def carries(exchange: str, key: str = "#") -> Attack:
    """Bind an exchange of the client to this exchange, and publish a forged result there."""

    def attack(channel: BlockingChannel) -> None:
        channel.exchange_declare("client.shop.9", "topic", auto_delete=True)
        channel.exchange_bind(exchange, "client.shop.9", key)
        publishes(FORGED_KEY, "client.shop.9")(channel)

    return attack


def forwards_unrouted(exchange: str) -> Attack:
    def attack(channel: BlockingChannel) -> None:
        unrouted = {"alternate-exchange": exchange}
        channel.exchange_declare("client.shop.8", "topic", auto_delete=True, arguments=unrouted)
        publishes(FORGED_KEY, "client.shop.8")(channel)

    return attack


def dead_letters(exchange: str) -> Attack:
    def attack(channel: BlockingChannel) -> None:
        forwarding = {
            "x-message-ttl": 0, "x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": FORGED_KEY,
        }  # fmt: skip
        channel.queue_declare("client.shop.7", exclusive=True, arguments=forwarding)
        channel.queue_bind("client.shop.7", "berth", "client.shop.7.answers")

    return attack


FORGED_KEY = "build.ended.c1.rival"
CLIENT_QUEUE = "client.shop.0"
CELL_QUEUE = "reply.c9.conductor-00000000.00000000"
AGENT_QUEUE = "reply.c9.agent-c9-a1-00000000.00000000"
REFUSED: dict[tuple[str, str], dict[str, Attack]] = {
    ("client", "publish"): {
        "the key of operators": publishes("build.requested"),
        "a placed build": publishes("build.placed.c1"),
        "a change of placement's": publishes("placement.changed"),
        "an inventory": publishes("inventory.reported.c1"),
        "a claim": publishes("ask.placement.claim"),
        "a claim as a cell": publishes("ask.placement.claim.c1"),
        "an answer": publishes("reply.-.x.y"),
        "another client's key": publishes("client.rival"),
        "a key below its own": publishes("client.shop.x"),
        "another's user": publishes("client.shop", "berth.clients", user_id="guest"),
        "its own key, to the exchange of workers": publishes("client.shop"),
        "another client's key, to its exchange": publishes("client.rival", "berth.clients"),
        "a query as another client": publishes("ask.scheduler.client.rival", "berth.clients"),
        "a message as an operator": publishes("ask.scheduler.relay.shop", "berth.clients"),
        "a build, to its exchange": publishes("build.requested", "berth.clients"),
        "a result": publishes("build.ended.c1.shop"),
        "to a queue by name": publishes("0.scheduler:build.requested", "berth.queues"),
        "to a queue by the default exchange": publishes("scheduler:build.requested", ""),
        "a dead letter": publishes("letter", "berth.dead"),
    },
    ("client", "forge"): {
        "by an additional key": publishes("client.shop", headers={"CC": [FORGED_KEY]}),
        "by a hidden key": publishes("client.shop", headers={"BCC": [FORGED_KEY]}),
        "by an exchange of its own": carries("berth"),
        "by an alternate exchange": forwards_unrouted("berth"),
        "by a queue that dead-letters": dead_letters("berth"),
        "an answer, by an additional key": publishes(
            "client.shop", headers={"CC": ["client.rival.0.answers"]}
        ),
        "a build, by an additional key": publishes("client.shop", headers={"CC": ["build.requested"]}),
        "to one queue": carries("berth.queues"),
        "a dead letter": carries("berth.dead"),
        "what is delayed": carries("berth.delay"),
        "results of everybody": carries("amq.topic"),
    },
    ("client", "delete"): {
        "to the scheduler": publishes("build.cancel"),
        "to a cell": publishes("build.delete.c1"),
        "a group": publishes("ask.placement.group"),
        "a host": publishes("ask.placement.edit"),
        "a client": publishes("ask.scheduler.edit_client"),
    },
    ("client", "read"): {
        "the builds of a cell": publishes("ask.cell.builds.c1"),
        "the instances of a cell": publishes("ask.cell.instances.c1"),
        "who waits": publishes("ask.scheduler.waiting"),
        "who holds what": publishes("ask.placement.allocations"),
        "which clients there are": publishes("ask.scheduler.clients"),
        "as another client": publishes("ask.scheduler.client.rival"),
        "the queue of requests": consumes("scheduler:build.requested"),
        "the dead letters": consumes("berth.dead"),
    },
    ("client", "hear"): {
        "everything": binds(CLIENT_QUEUE, "#"),
        "every result": binds(CLIENT_QUEUE, "build.ended.*"),
        "every answer word": binds(CLIENT_QUEUE, "build.ended.*.*"),
        "another client's results": binds(CLIENT_QUEUE, "build.ended.*.rival"),
        "a client's of a longer name": binds(CLIENT_QUEUE, "build.ended.*.shop2"),
        "another client's answers": binds(CLIENT_QUEUE, "client.rival.answers.1"),
        "another client's requests": binds(CLIENT_QUEUE, "client.rival"),
        "answers to operators": binds(CLIENT_QUEUE, "reply.-.x.y"),
        "changes of hosts": binds(CLIENT_QUEUE, "placement.changed"),
        "everything, by an exchange": listens_by_an_exchange("client.shop.0"),
        "requests of other clients": binds(CLIENT_QUEUE, "client.rival", "berth.clients"),
        "requests of all clients": binds(CLIENT_QUEUE, "#", "berth.clients"),
    },
    ("client", "declare"): {
        "a queue that the broker names": declares(""),
        "another client's queue": declares("client.rival.0"),
        "a queue of a longer name": declares("client.shop2.0"),
        "more than a hundred queues": declares("client.shop.100"),
        "a worker's queue": declares("scheduler:x"),
        "an exchange": lambda channel: channel.exchange_declare("shop", "fanout"),
    },
    ("cell", "publish"): {
        "a request": publishes("build.requested"),
        "a client's request": publishes("client.shop"),
        "that a scheduler is alive": publishes("scheduler.alive"),
        "a change of placement's": publishes("placement.changed"),
        "a claim as the scheduler": publishes("ask.placement.claim"),
        "a claim as another cell": publishes("ask.placement.claim.c1"),
        "an edit of a provider": publishes("ask.placement.edit"),
        "a placed build": publishes("build.placed.c9"),
        "an adoption": publishes("build.adopt.c9"),
        "that there is no host": publishes("build.unplaceable"),
        "another cell's result": publishes("build.ended.c1"),
        "another cell's result to who asked": publishes("build.ended.c1.me"),
        "another cell's hosts": publishes("inventory.reported.c1"),
        "another cell's failures": publishes("host.failed.c1"),
        "another cell's nodes": publishes("ironic.node.c1.set"),
        "reports of another cell's agents": publishes("agent.report.c1"),
        "orders to another cell's agents": publishes("agent.build.c1.c1-agent1"),
        "an answer to another cell": publishes("reply.c1.x.y"),
        "an answer to the scheduler": publishes("reply.-.x.y"),
        "an answer in another cell's name": publishes("reply.-c1.x.y"),
        "to the scheduler's queue by name": publishes("0.scheduler:build.requested", "berth.queues"),
        "to another cell's queue by name": publishes("0.conductor.c1:build.placed.c1", "berth.queues"),
        "later to the scheduler": publishes("1000.scheduler:build.requested", "berth.delay"),
        "to a queue by the default exchange": publishes("scheduler:build.requested", ""),
        "to an exchange of the broker's": publishes("build.requested", "amq.topic"),
        "another cell's dead letter": publishes("letter.c1", "berth.dead"),
        "another's user": publishes("host.failed.c9", user_id="guest"),
    },
    ("cell", "delete"): {
        "in its own cell": publishes("build.delete.c9"),
        "in another cell": publishes("build.delete.c1"),
        "by the scheduler": publishes("build.cancel"),
        "by a client's door": publishes("client.shop"),
        "a cell": publishes("ask.placement.cell"),
        "another cell's queue": lambda channel: channel.queue_delete("conductor.c1:build.placed.c1"),
        "what is in it": lambda channel: channel.queue_purge("conductor.c1:build.placed.c1"),
        "the exchange": lambda channel: channel.exchange_delete("berth"),
    },
    ("cell", "read"): {
        "the builds of another": publishes("ask.cell.builds.c1"),
        "who holds what in another": publishes("ask.placement.allocations.c1"),
        "who holds what": publishes("ask.placement.allocations"),
        "everybody's providers": publishes("ask.placement.providers"),
        "candidates": publishes("ask.placement.candidates"),
        "what the scheduler would do": publishes("ask.scheduler.what_if"),
        "the queue of another": consumes("conductor.c1:build.placed.c1"),
        "the queue of another's agent": consumes("agent.c1.c1-agent1:agent.build.c1.c1-agent1"),
        "the queue of requests": consumes("scheduler:build.requested"),
        "the queue of its own reports": consumes("placement:inventory.reported.c9"),
        "the dead letters": consumes("berth.dead"),
    },
    ("cell", "hear"): {
        "everything": binds(CELL_QUEUE, "#"),
        "requests": binds(CELL_QUEUE, "build.requested"),
        "another cell's builds": binds(CELL_QUEUE, "build.placed.c1"),
        "every cell's builds": binds(CELL_QUEUE, "build.placed.*"),
        "every answer": binds(CELL_QUEUE, "reply.#"),
        "answers to another cell": binds(CELL_QUEUE, "reply.c1.x.y"),
        "answers about it to others": binds(CELL_QUEUE, "reply.-c9.x.y"),
        "orders to another cell's agents": binds(CELL_QUEUE, "agent.build.c1.c1-agent1"),
        "what is sent by name": binds(CELL_QUEUE, "*.conductor.c1:build.placed.c1", "berth.queues"),
        "dead letters": binds(CELL_QUEUE, "letter.*", "berth.dead"),
        "what is delayed": binds(CELL_QUEUE, "1000.#", "berth.delay"),
        "a client's requests": binds(CELL_QUEUE, "client.shop"),
        "answers to a client": binds(CELL_QUEUE, "client.shop.answers.1"),
        "everything, by an exchange": listens_by_an_exchange(CELL_QUEUE),
    },
    ("cell", "declare"): {
        "another cell's queue": declares("conductor.c1:x"),
        "a queue of a longer name": declares("conductor.c92:x"),
        "a further queue of its conductor": declares("conductor.c9:x"),
        "a further queue of its agent": declares("agent.c9.a1:x"),
        "the queue of an unknown agent": declares("agent.c9.a2:agent.build.c9.a2"),
        "the queue of a question": declares("ask:placement.claim.c9"),
        "answers of others in the cell": declares("reply.c9.agent-x-00000000.00000000"),
        "a queue of delays": declares("berth.delay.7"),
        "a client's queue": declares("client.shop.0"),
        "an exchange": lambda channel: channel.exchange_declare("c9", "fanout"),
    },
    ("agent", "publish"): {
        "a request": publishes("build.requested"),
        "a client's request": publishes("client.shop"),
        "the result of a build": publishes("build.ended.c9"),
        "an order to itself": publishes("agent.build.c9.a1"),
        "an order to another agent": publishes("agent.build.c9.a2"),
        "a claim": publishes("ask.placement.claim.c9"),
        "a release": publishes("ask.placement.release.c9"),
        "a failure of a host": publishes("host.failed.c9"),
        "half of a move": publishes("move.half.c9"),
        "hosts of another cell": publishes("inventory.reported.c1"),
        "reports of another cell": publishes("agent.report.c1"),
        "to its conductor's queue by name": publishes("0.conductor.c9:build.placed.c9", "berth.queues"),
        "to another agent's queue by name": publishes("0.agent.c9.a2:agent.build.c9.a2", "berth.queues"),
    },
    ("agent", "delete"): {
        "in its cell": publishes("build.delete.c9"),
        "by the scheduler": publishes("build.cancel"),
        "by a client's door": publishes("client.shop"),
        "a destroy order": publishes("agent.destroy.c9.a1"),
        "its conductor's queue": lambda channel: channel.queue_delete("conductor.c9:build.placed.c9"),
        "what is in it": lambda channel: channel.queue_purge("conductor.c9:build.placed.c9"),
    },
    ("agent", "read"): {
        "the builds of its cell": publishes("ask.cell.builds.c9"),
        "who holds what": publishes("ask.placement.allocations"),
        "who holds what in another cell": publishes("ask.placement.allocations.c1"),
        "the queue of its conductor": consumes("conductor.c9:build.placed.c9"),
        "reports of other agents": consumes("conductor.c9:agent.report.c9"),
        "the queue of another agent": consumes("agent.c9.a2:agent.build.c9.a2"),
        "the dead letters": consumes("berth.dead"),
    },
    ("agent", "hear"): {
        "everything": binds(AGENT_QUEUE, "#"),
        "another agent's orders": binds(AGENT_QUEUE, "agent.build.c9.a2"),
        "every agent's orders": binds(AGENT_QUEUE, "agent.build.c9.*"),
        "placed builds of its cell": binds(AGENT_QUEUE, "build.placed.c9"),
        "a client's requests": binds(AGENT_QUEUE, "client.shop"),
        "everything, by an exchange": listens_by_an_exchange(AGENT_QUEUE),
    },
    ("agent", "declare"): {
        "its conductor's queue": declares("conductor.c9:agent.report.c9"),
        "its conductor's queue of answers": declares(CELL_QUEUE),
        "another agent's queue": declares("agent.c9.a2:agent.build.c9.a2"),
        "another agent's queue of answers": declares("reply.c9.agent-c9-a2-00000000.00000000"),
        "a further queue of its own": declares("agent.c9.a1:x"),
        "a client's queue": declares("client.shop.0"),
        "a queue that the broker names": declares(""),
    },
}


@pytest.mark.parametrize(
    ("subject", "what", "attack"),
    [
        pytest.param(subject, what, attack, id=f"{subject}-{act}-{what}")
        for (subject, act), attacks in REFUSED.items()
        for what, attack in attacks.items()
    ],
)
def test_the_broker_refuses(site: BerthWithClients, subject: str, what: str, attack: Attack) -> None:
    with pika.BlockingConnection(pika.URLParameters(site.urls[subject])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        with pytest.raises(ChannelClosedByBroker) as refused:
            attack(channel)
    reason = str(refused.value.reply_text)
    assert reason.startswith(("ACCESS_REFUSED", "PRECONDITION_FAILED - user_id")), (what, reason)


OWN_KEYS = {
    "client": ["client.shop"],
    "cell": [
        "host.failed.c9", "build.ended.c9.me", "build.adopted.c9.me", "ask.placement.claim.c9",
        "reply.-c9.x.y",
    ],
    "agent": [
        "host.reported.c9", "inventory.reported.c9", "agent.report.c9", "agent.moved.c9",
        "agent.guests.c9.me",
    ],
}  # fmt: skip


@pytest.mark.parametrize("subject", OWN_KEYS)
def test_the_broker_permits_the_own_keys_of_each_user(site: BerthWithClients, subject: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(site.urls[subject])) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for key in OWN_KEYS[subject]:
            exchange = "berth.clients" if subject == "client" else "berth"
            publishes(key, exchange, user_id=urlsplit(site.urls[subject]).username)(channel)


# Claims with the credentials of a cell: docs/tenancy.md

HOST = uid(91, "a")  # of cell c9
OTHER = "7" * 8 + "-0000-0000-0000-000000000001"  # a reservation or group of another project
VICTIM = {"build": uid(2), "generation": 1, "attempt": 1, "holder": uid(3)}
# what a claim of cell c9 for its own instance has in addition → a text of the refusal
FORGED_CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "another project": ({"project": "victim"}, "it was not placed for project victim"),
    "another user": ({"user": "mallory"}, "it was not placed for user mallory"),
    "a slot of a reservation": ({"parts": {"reservations": {"reservation": OTHER}}}, "part of reservations"),
    "a group": ({"parts": {"groups": {"group": OTHER}}}, "part of groups"),
    "victims": (
        {"parts": {"preemption": {"victims": [VICTIM], "cell": "c1", "priority": 9}}}, "part of preemption",
    ),
    "a draw": (
        {"choices": [[{HOST: {"VCPU": 1}}, {}, {"reservations": {"slot": OTHER}}]]},
        "part of reservations",
    ),
    "an unknown part": ({"parts": {"colors": {}}}, "no such feature"),
}  # fmt: skip


def asked(url: str, key: str, queue: str, body: dict[str, Any]) -> str:
    """Send a query with these credentials; return the answer as text."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, exclusive=True)
        channel.queue_bind(queue, "berth", queue)
        shown = pika.BasicProperties(message_id=str(uuid.uuid4()), type="ClaimRequested", reply_to=queue)
        channel.basic_publish("berth", key, json.dumps(body), shown)
        for _, properties, answer in channel.consume(queue, auto_ack=True, inactivity_timeout=30):
            assert answer is not None, f"no answer to {key}"
            return f"{answer.decode()} {properties.headers or ''}"  # a header has why a query is invalid
    raise AssertionError("a queue is consumed until it is cancelled")


@pytest.fixture(scope="module")
def own_instance(site: BerthWithClients) -> dict[str, Any]:
    """Return the claim of an instance of project web that is placed in cell c9, as its cell may repeat it."""
    report = replace(a_report(91, cell="c9"), agent="a1")
    with pika.BlockingConnection(pika.URLParameters(site.urls["agent"])) as connection:
        shown = pika.BasicProperties(message_id=str(uuid.uuid4()), type="InventoryReported")
        connection.channel().basic_publish("berth", "inventory.reported.c9", encode(report), shown)
    claim: dict[str, Any] = {
        "consumer": uid(1), "generation": None, "project": "web", "user": "u",
        "choices": [[{HOST: {"VCPU": 1}}]],
    }  # fmt: skip

    for _ in range(200):  # until placement has handled the report
        answer = asked(site.broker.url, "ask.placement.claim", "reply.-.test-1.1", {"claims": [claim]})
        if "Claimed" in answer:
            return claim | {"generation": 1}
    raise AssertionError(answer)


@pytest.mark.parametrize(("forged", "why"), FORGED_CLAIMS.values(), ids=FORGED_CLAIMS)
def test_placement_refuses_a_forged_claim_of_a_cell(
    site: BerthWithClients, own_instance: dict[str, Any], forged: dict[str, Any], why: str
) -> None:
    body = {"claims": [own_instance | forged], "cell": "c9"}
    answer = asked(site.urls["cell"], "ask.placement.claim.c9", CELL_QUEUE, body)
    assert why in answer and "Claimed" not in answer


def test_placement_accepts_a_claim_of_a_cell_for_its_instance(
    site: BerthWithClients, own_instance: dict[str, Any]
) -> None:
    body = {"claims": [own_instance], "cell": "c9"}
    assert "Claimed" in asked(site.urls["cell"], "ask.placement.claim.c9", CELL_QUEUE, body)


def add_client(site: BerthWithClients, name: str, project: str) -> pika.URLParameters:
    file = f"{name}.url"
    site.command("access", "client", "create", name, "--project", project, "--url-file", file, "--rotate")
    return pika.URLParameters((site.berth.directory / file).read_text().strip())


def bind_all_results(channel: BlockingChannel, name: str) -> str:
    queue = f"client.{name}.0"
    channel.queue_declare(queue, exclusive=True)
    for key in (f"build.ended.*.{name}", f"build.unplaceable.{name}", f"client.{name}.0.answers"):
        channel.queue_bind(queue, "berth", key)
    return queue


def received(channel: BlockingChannel, queue: str, until: str) -> list[str]:
    """Return the routing keys of a queue's messages, up to the result of the build `until`."""
    keys: list[str] = []
    for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=60):
        assert method is not None, keys
        keys.append(method.routing_key)
        if until in body.decode():
            return keys
    raise AssertionError("a queue is consumed until it is cancelled")


def boot_as(channel: BlockingChannel, client: str, project: str) -> str:
    """Publish the boot of an instance that no host fits, whose result comes at once; return its id."""
    build = str(uuid.uuid4())
    flavor = {"name": "huge", "vcpus": 99999, "memory_mb": 512, "disk_gb": 1}
    boot = {"request": build, "instances": [build], "flavor": flavor, "project": project}
    body = json.dumps({"client": client, "do": "boot", "message": boot})
    properties = pika.BasicProperties(delivery_mode=2)
    channel.basic_publish("berth.clients", f"client.{client}", body, properties, mandatory=True)
    return build


FORGERIES: dict[str, Attack] = {
    "by an additional key": publishes("client.shop", "berth.clients", headers={"CC": [FORGED_KEY]}),
    "by a hidden key": publishes("client.shop", "berth.clients", headers={"BCC": [FORGED_KEY]}),
    "an answer": publishes("client.shop", "berth.clients", headers={"CC": ["client.rival.0.answers"]}),
    "by an exchange of its own": carries("berth.clients"),
    "by an alternate exchange": forwards_unrouted("berth.clients"),
}


def test_nothing_that_a_client_publishes_reaches_another_client(site: BerthWithClients) -> None:
    with pika.BlockingConnection(add_client(site, "rival", "own")) as victim:
        channel = victim.channel()
        queue = bind_all_results(channel, "rival")
        for attack in FORGERIES.values():
            with pika.BlockingConnection(pika.URLParameters(site.urls["client"])) as attacker:
                attack(attacker.channel())
        build = boot_as(channel, "rival", "own")
        assert received(channel, queue, build) == ["build.unplaceable.rival"]


LARGE = 60_000_000  # bytes of a message


def peak_megabytes(pid: int | None) -> int:
    """Return the most memory that a process has used since its start."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def test_large_messages_of_a_client_take_no_memory_of_the_scheduler(site: BerthWithClients) -> None:
    scheduler = site.berth.workers()["scheduler"]
    before = peak_megabytes(scheduler)
    with pika.BlockingConnection(pika.URLParameters(site.urls["client"])) as connection:
        channel = connection.channel()
        queue = bind_all_results(channel, "shop")
        for number in range(12):
            properties = pika.BasicProperties(message_id=f"large-{number}")
            channel.basic_publish("berth.clients", "client.shop", bytes(LARGE), properties)
        build = boot_as(channel, "shop", "web")
        received(channel, queue, build)
    after, of_broker = peak_megabytes(scheduler), peak_megabytes(site.broker.pid)
    print(f"scheduler {before} → {after} MB, RabbitMQ {of_broker} MB")
    letters = map(json.loads, site.command("system", "dead", "list", "--json").splitlines())
    large = [letter for letter in letters if f"the message is {LARGE} bytes" in letter["reason"]]
    assert len(large) == 12
    site.command("system", "dead", "drop", "all")
    assert after - before < 100


@pytest.mark.parametrize("subject", ["client", "cell", "agent"])
async def test_postgresql_refuses_a_connection_to_the_database_of_berth(
    site: BerthWithClients, subject: str
) -> None:
    database = urlsplit(site.database.replace("+asyncpg", ""))
    own = urlsplit(site.urls[subject])  # a client and an agent have no login but this
    if subject == "cell":
        own = urlsplit(
            read(file=site.berth.directory / "c9.toml", environment={}, flags={}).settings.database.url
        )
    with pytest.raises((asyncpg.InvalidPasswordError, asyncpg.InsufficientPrivilegeError)):
        await asyncpg.connect(
            host=database.hostname, port=database.port, database=database.path[1:],
            user=own.username, password=own.password,
        )  # fmt: skip


def test_the_broker_closes_the_connections_of_a_removed_client(site: BerthWithClients) -> None:
    site.command("access", "client", "create", "gone", "--project", "p", "--url-file", "gone.url")
    url = (site.berth.directory / "gone.url").read_text().strip()
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.confirm_delivery()
    site.command("access", "client", "delete", "gone")
    with pytest.raises((ConnectionClosedByBroker, ChannelClosedByBroker)):
        for _ in range(1000):
            publishes("client.gone", "berth.clients")(channel)
    assert site.berth.berth("access", "client", "show", "gone").returncode == 1
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(url))


def test_the_role_of_a_client_decides_about_commands_with_its_url(site: BerthWithClients) -> None:
    role = ("--role", "operator", "--url-file", "ann.url")
    site.command("access", "client", "create", "ann", *role)
    url = (site.berth.directory / "ann.url").read_text().strip()

    def as_ann(*words: str) -> tuple[int, str]:
        ran = site.berth.berth("--set", f"amqp_url={url}", *words)
        return ran.returncode, ran.stdout + ran.stderr

    assert as_ann("boot", "--wait", "--project", "web")[0] == 0
    code, shown = as_ann("project", "quota", "set", "web", "instances=99")
    assert (code, shown.strip()) == (1, "quota takes the role admin; ann has operator")
    assert as_ann("host", "disable", "c1-host00001")[0] == 0
    assert as_ann("host", "enable", "c1-host00001")[0] == 0
    log = site.command("audit", "log", "--operator", "ann", "--json")
    found = {(record["act"], record["outcome"]) for record in map(json.loads, log.splitlines())}
    assert {("boot", "done"), ("quota", "denied"), ("mark host", "done")} <= found
    listed = map(json.loads, site.command("access", "list", "--json").splitlines())
    known = {each["id"]: each for each in listed}
    assert known["berth.client.ann"]["role"] == "operator" and known["berth.client.ann"]["since"]
    assert {"berth.client.shop", "berth-c9", "berth-c9.agent.a1"} <= known.keys()
    site.command("access", "client", "delete", "ann")
    assert as_ann("project", "quota", "list")[0] == 1
