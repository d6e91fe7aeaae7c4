"""Dead letters of clients' requests, when they are replayed."""

from dataclasses import replace

import pytest

from berth.kit.testing import commands_connect_by
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested
from bus.protocol import encode
from bus.worker import Worker, on
from features.clients.messages import CLIENT_REQUESTED, ClientRequested
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.envelopes import a_json_letter
from tests.support.ids import uid
from tests.support.waiting import until


async def test_a_message_of_another_clients_key_stays_refused_when_it_is_replayed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The consumer repeats the judgement: the body may not name another client than the verified key."""
    broker, seen = LocalBroker(), list[ClientRequested]()

    async def handle(asked: ClientRequested) -> None:
        seen.append(asked)

    dead = CommandLine("system dead", monkeypatch, capsys)
    commands_connect_by(lambda: LocalTransport(broker), monkeypatch)
    worker = Worker("scheduler", consumes=[on(CLIENT_REQUESTED, handle)])
    cancel = BuildCancelRequested(build=uid(1))
    async with serving(lambda: LocalTransport(broker), worker):
        for key, id_ in (("client.shop", "theirs"), ("client.rival", "own")):
            asked = ClientRequested(client="rival", do="delete", message=cancel)
            letter = a_json_letter(id_, queue="scheduler:client.*", key=key, type="ClientRequested")
            broker.store_dead_letter(replace(letter, body=encode(asked)))
            await dead("replay", id_)
        await until(lambda: seen and list(broker.dead) == ["theirs"])
    assert len(seen) == 1
    assert broker.dead["theirs"].sender == "client.shop"
