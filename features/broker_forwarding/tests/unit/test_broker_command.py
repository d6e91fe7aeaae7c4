"""`berth broker`: which queues are forwarded, which input is refused, and what is prepared for an import."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from berth.__main__ import app
from berth.commands.options import url_or_file
from berth.settings import BadSetting, Settings
from bus.rabbit.topology import BrokerNames
from features.broker_forwarding import commands as broker
from features.broker_forwarding.definitions import NotDefinitions, durable_queues, importable
from features.broker_forwarding.forwarding import Forwarder
from features.broker_forwarding.queues import check_urls, chosen_queues, write_importable

OLD, NEW = "amqp://berth:secret@old/berth", "amqp://berth:secret@new/berth"


def exported(**more: Any) -> bytes:
    """Definitions as RabbitMQ exports them: with bindings of private queues, and without these queues."""

    def bound(source: str, queue: str, kind: str = "queue") -> dict[str, Any]:
        ends = {"source": source, "destination": queue, "destination_type": kind}
        return {**ends, "vhost": "berth", "routing_key": "#", "arguments": {}}

    kept = [bound("berth", "q"), bound("amq.topic", "q"), bound("berth", "berth.dead", "exchange")]
    dropped = [bound("berth", "private"), bound("gone", "q"), bound("berth", "gone", "exchange")]
    return json.dumps(
        {
            "users": [{"name": "berth", "password_hash": "hash", "tags": ["administrator"]}],
            "vhosts": [{"name": "berth"}, {"name": "/"}],
            "global_parameters": [{"name": "cluster_name", "value": "old"}, {"name": "mine", "value": 1}],
            "queues": [
                {"name": "q", "vhost": "berth", "durable": True, "arguments": {"x-queue-type": "quorum"}},
                {"name": "a", "vhost": "berth", "durable": True, "arguments": {}},
                {"name": "other", "vhost": "/", "durable": True, "arguments": {}},
                {"name": "brief", "vhost": "berth", "durable": False, "arguments": {}},
                {"name": "log", "vhost": "berth", "durable": True, "arguments": {"x-queue-type": "stream"}},
            ],
            "exchanges": [{"name": "berth", "vhost": "berth"}, {"name": "berth.dead", "vhost": "berth"}],
            "bindings": [*kept, *dropped],
            **more,
        }
    ).encode()


def test_the_durable_queues_of_one_virtual_host_are_forwarded() -> None:
    assert durable_queues(exported(), "berth", "berth") == ["a", "q"]
    assert durable_queues(exported(), "/", "berth") == ["other"]
    of_one_host = b'{"queues": [{"name": "x", "durable": true, "arguments": {}}]}'
    assert durable_queues(of_one_host, "berth", "berth") == ["x"]


def test_queues_of_another_installation_in_the_virtual_host_are_left_out() -> None:
    names = ("berth", "berth.queues", "lab", "lab.queues", "lab.dead", "notes.queues")
    bindings = [
        {"source": source, "destination": queue, "destination_type": "queue", "vhost": "berth"}
        for source, queue in (
            ("berth.queues", "q"),
            ("berth", "q"),
            ("lab", "lab:q"),
            ("lab.queues", "lab:q"),
            ("lab.dead", "lab.dead"),
            ("notes.queues", "notes"),
        )
    ]
    content = exported(
        exchanges=[{"name": name, "vhost": "berth"} for name in names],
        queues=[{"name": name, "vhost": "berth"} for name in ("q", "unbound", "lab:q", "lab.dead", "notes")],
        bindings=bindings,
    )
    assert durable_queues(content, "berth", "berth") == ["notes", "q", "unbound"]
    assert durable_queues(content, "berth", "lab") == ["lab.dead", "lab:q", "notes", "unbound"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not JSON", "was not written by `rabbitmqctl export_definitions FILE`"),
        (b"\xff\xfe", "was not written by"),
        (b'{"a": 1}', "was not written by .*missing required field `queues`"),
        (b"[]", "was not written by"),
        (b'{"queues": []}', "virtual host 'berth' for the exchange berth: the file has no queues at all"),
        (exported(queues=[{"name": "x", "vhost": "/"}]), "the file has queues of '/'"),
    ],
)
def test_a_file_without_queues_of_the_virtual_host_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(NotDefinitions, match=reason):
        durable_queues(content, "berth", "berth")


def test_importable_definitions_have_no_bindings_of_private_queues_and_no_name_of_the_cluster() -> None:
    content, left_out = importable(exported())
    before, after = json.loads(exported()), json.loads(content)
    assert left_out == 3
    assert after["bindings"] == before["bindings"][:3]
    assert after["global_parameters"] == [{"name": "mine", "value": 1}]
    assert {name for name in before if before[name] != after[name]} == {"bindings", "global_parameters"}


def test_importable_definitions_are_as_private_as_the_exported_ones(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_bytes(exported())
    old.chmod(0o600)
    assert write_importable(str(old), str(new)) == 3
    assert new.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BadSetting, match="name another file"):
        write_importable(str(old), str(old))
    assert old.read_bytes() == exported()
    with pytest.raises(BadSetting, match=r"none\.json: No such file"):
        write_importable(str(tmp_path / "none.json"), str(new))


def test_queues_are_chosen_by_file_by_name_and_by_exception(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_bytes(exported())
    assert chosen_queues(Settings(), OLD, str(file), (), ()) == ["a", "q"]
    assert chosen_queues(Settings(), OLD, str(file), (), ("a",)) == ["q"]
    assert chosen_queues(Settings(), OLD, str(file), ("x", "x", "y"), ()) == ["x", "y"]
    for queues, excluding, reason in (
        ((), ("z",), "there is no queue z"),
        ((), ("a", "q"), "leaves out all"),
        (("x",), ("x",), "leaves out all"),
    ):
        with pytest.raises(BadSetting, match=reason):
            chosen_queues(Settings(), OLD, str(file), queues, excluding)
    with pytest.raises(BadSetting, match="name the queues: --definitions FILE, or --queue NAME"):
        chosen_queues(Settings(), OLD, "", (), ())
    with pytest.raises(BadSetting, match="Is a directory"):
        chosen_queues(Settings(), OLD, str(tmp_path), (), ())


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (OLD, OLD, "the same broker: old:5672, 'berth'"),
        (OLD, "amqp://other:word@new,old:5672/berth", "the same broker: old:5672"),
        ("http://berth:secret@old", NEW, "--from: the URL must begin with amqp"),
        (OLD, "amqp://berth:secret@:x/", "--to: the URL must look like"),
    ],
)
def test_urls_that_lead_nowhere_or_to_one_broker_are_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason) as refused:
        check_urls(old, new)
    assert "secret" not in str(refused.value)


def test_another_virtual_host_of_one_broker_is_permitted() -> None:
    check_urls(OLD, OLD.replace("/berth", "/new"))


def test_a_url_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "old.url"
    file.write_text(f"{OLD}\n")
    assert url_or_file(str(file)) == url_or_file(OLD) == OLD
    with pytest.raises(BadSetting, match="neither a URL nor a readable file: No such file"):
        url_or_file(str(tmp_path / "none"))
    file.write_bytes(b"\xff")
    with pytest.raises(BadSetting, match="it is not text"):
        url_or_file(str(file))


def test_the_report_has_the_fullest_queue() -> None:
    forwarder = Forwarder(OLD, NEW, BrokerNames("berth"), ["q", "r"])
    report = broker._ForwardingReport(forwarder)
    assert report._line(12.4) == "0 queues, 0 messages forwarded, 12/s, 0 waiting"
    forwarder.waiting = {"q": 2, "r": 5}
    assert report._line(0) == "0 queues, 0 messages forwarded, 0/s, 7 waiting (most in r)"


def test_the_command_line_names_what_is_missing() -> None:
    sent = CliRunner().invoke(app, ["broker", "forward", "--from", OLD])
    assert sent.exit_code == 2
    assert "--to" in sent.output
