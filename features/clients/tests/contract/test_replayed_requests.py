"""Dead letters of clients' requests, when they are replayed."""

from dataclasses import replace

from berth import dead_letters
from bus.clock import Clock
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildCancelRequested
from bus.protocol import encode
from bus.worker import Worker, on
from features.clients.messages import CLIENT_REQUESTED, ClientRequested
from tests.contract.test_dead_command import a_json_letter
from tests.support.buses import serving
from tests.support.ids import uid
from tests.support.waiting import until


async def test_a_message_of_another_clients_key_stays_refused_when_it_is_replayed() -> None:
    """The consumer repeats the judgement: the body may not name another client than the verified key."""
    broker, seen = LocalBroker(), list[ClientRequested]()

    async def handle(asked: ClientRequested) -> None:
        seen.append(asked)

    worker = Worker("scheduler", consumes=[on(CLIENT_REQUESTED, handle)])
    cancel = BuildCancelRequested(build=uid(1))
    async with serving(lambda: LocalTransport(broker), worker):
        for key, id_ in (("client.shop", "theirs"), ("client.rival", "own")):
            asked = ClientRequested(client="rival", do="delete", message=cancel)
            letter = a_json_letter(id_, queue="scheduler:client.*", key=key, type="ClientRequested")
            broker.store_dead_letter(replace(letter, body=encode(asked)))
            assert await dead_letters.replay(LocalTransport(broker), Clock(), [id_], print) == 1
        await until(lambda: seen and list(broker.dead) == ["theirs"])
    assert len(seen) == 1
    assert broker.dead["theirs"].sender == "client.shop"
