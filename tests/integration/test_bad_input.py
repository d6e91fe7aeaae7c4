"""Invalid messages on a real broker stop no worker, and become dead letters with a reason."""

import json
import re
import secrets
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from deploy.servers import Postgres, RabbitMQ
from tests.support.berth_processes import Up
from tests.support.servers import a_module_database, url_of

pytestmark = [pytest.mark.services, pytest.mark.slow]

SECONDS = 20.0


@pytest.fixture(scope="module")
def berth(rabbitmq: RabbitMQ, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with a_module_database(postgres) as database:
        environment = {
            "BERTH_AMQP_URL": url_of(rabbitmq),
            "BERTH_DATABASE_URL": database,
            "BERTH_EXCHANGE": f"t{secrets.token_hex(4)}",
            "BERTH_ZONES": "north,south",
            "BERTH_CELLS": "c1",
        }
        flags = ("--hosts", "4", "--build-time", "constant:0.1")
        with Up(tmp_path_factory.mktemp("bad-input"), environment, *flags) as berth:
            yield berth
            assert "starting it again" not in berth.log, "a worker ended over what was published"


class Stranger:
    def __init__(self, berth: Up) -> None:
        self.exchange = berth.environment["BERTH_EXCHANGE"]
        self._connection = pika.BlockingConnection(pika.URLParameters(berth.environment["BERTH_AMQP_URL"]))
        self._channel: BlockingChannel = self._connection.channel()
        self._channel.confirm_delivery()
        self._mine: str = self._channel.queue_declare("", exclusive=True).method.queue
        for key in ("build.ended.*", "build.unplaceable"):
            self._channel.queue_bind(self._mine, self.exchange, key)

    def close(self) -> None:
        self._connection.close()

    def says(self, body: bytes, kind: str = "") -> str:
        id_ = str(uuid.uuid4())
        properties = pika.BasicProperties(message_id=id_, type=kind or None)
        self._channel.basic_publish(self.exchange, "build.requested", body, properties, mandatory=True)
        return id_

    def hears_of(self, request: str) -> tuple[str, dict[str, Any]]:
        """The topic and the message of the request's end."""
        heard = self._channel.consume(self._mine, auto_ack=True, inactivity_timeout=SECONDS)
        for method, _, body in heard:
            assert body is not None, f"nothing was heard of {request}"
            said = json.loads(body)
            if said["request"] == request:
                self._channel.cancel()
                return method.routing_key, said
        raise AssertionError("the queue was taken away")


@pytest.fixture
def stranger(berth: Up) -> Iterator[Stranger]:
    stranger = Stranger(berth)
    yield stranger
    stranger.close()


def request_in_json(**changes: object) -> dict[str, Any]:
    build = str(uuid.uuid4())
    flavor = {"name": "small", "vcpus": 1, "memory_mb": 512, "disk_gb": 1}
    request = {"request": build, "instances": [build], "flavor": flavor, **changes}
    return {name: value for name, value in request.items() if value is not None}


def flavored(**changes: object) -> dict[str, Any]:
    return request_in_json(flavor={"name": "small", "vcpus": 1, "memory_mb": 512, "disk_gb": 1, **changes})


def as_bytes(message: object) -> bytes:
    return json.dumps(message).encode()


def dead_letter(berth: Up, id_: str) -> dict[str, Any]:
    """The letter of this id, once it is among the dead."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        listed = berth.berth("dead", "list", "--json")
        assert listed.returncode == 0, listed.stderr
        for line in listed.stdout.splitlines():
            letter: dict[str, Any] = json.loads(line)
            if letter["id"] == id_:
                return letter
    raise AssertionError(f"{id_} is not among the dead letters:\n{listed.stdout[:2000]}")


HUGE = request_in_json(metadata={"notes": "x" * 2 * 1024 * 1024})


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (b'{"request": "', "", "BuildRequested: not JSON: Input data was truncated"),
        (b"\x80\x81\x82", "", "BuildRequested: not JSON"),
        (
            as_bytes(request_in_json()),
            "BuildWished",
            "type: 'BuildWished' is unknown on this topic, which carries BuildRequested",
        ),
        (as_bytes(request_in_json(flavor=None)), "", "missing required field `flavor`"),
        (as_bytes(flavored(vcpus=-1)), "", "Expected `int` >= 0 - at `$.flavor.vcpus`"),
        (as_bytes(HUGE), "", "the bus carries at most 1048576"),
    ],
)
def test_what_cannot_be_read_is_kept_with_a_sentence_about_it(
    berth: Up, stranger: Stranger, body: bytes, kind: str, sentence: str
) -> None:
    letter = dead_letter(berth, stranger.says(body, kind))
    assert sentence in letter["reason"]
    assert letter["queue"] == "scheduler:build.requested"
    assert letter["body"].encode(errors="replace")[:100] == body.decode(errors="replace").encode()[:100]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (request_in_json(cell="atlantis"), ("cell", "atlantis")),
        (request_in_json(zone="utopia"), ("zone", "utopia")),
    ],
    ids=["cell", "zone"],
)
def test_a_place_nobody_knows_is_named_in_the_answer(
    stranger: Stranger, request_: dict[str, Any], words: tuple[str, ...]
) -> None:
    stranger.says(as_bytes(request_))
    topic, said = stranger.hears_of(request_["request"])
    assert topic == "build.unplaceable"
    for word in words:
        assert word in said["reason"]


def test_after_all_that_a_good_request_is_built(berth: Up, stranger: Stranger) -> None:
    for body in (b"{", b"[]", as_bytes(flavored(vcpus=-1))):
        stranger.says(body)
    request = request_in_json(zone="south", cell="c1")
    stranger.says(as_bytes(request))
    topic, said = stranger.hears_of(request["request"])
    assert (topic, said["status"], said["cell"]) == ("build.ended.c1", "active", "c1")


def test_dead_letters_can_be_listed_shown_replayed_and_dropped(berth: Up, stranger: Stranger) -> None:
    id_ = stranger.says(as_bytes(flavored(disk_gb="much")))
    letter = dead_letter(berth, id_)

    listed = berth.berth("dead", "list")
    assert listed.returncode == 0
    assert re.search(rf"^{id_[:8]}.* scheduler:build\.requested ", listed.stdout, re.MULTILINE)

    shown = berth.berth("dead", "show", id_[:13])
    assert shown.returncode == 0
    assert "at `$.flavor.disk_gb`" in shown.stdout
    assert '"disk_gb": "much"' in shown.stdout

    replayed = berth.berth("dead", "replay", id_)
    assert (replayed.returncode, replayed.stdout.strip()) == (0, "1 replayed")
    again = dead_letter(berth, id_)  # it is no better than it was
    assert again["first died"] == letter["first died"]

    dropped = berth.berth("dead", "drop", id_)
    assert (dropped.returncode, dropped.stdout.strip()) == (0, "1 dropped")
    assert id_ not in berth.berth("dead", "list", "--json").stdout

    unknown = berth.berth("dead", "drop", id_)
    assert unknown.returncode == 1
    assert f"no dead letter's id begins with '{id_}'" in unknown.stdout
