"""Invalid requests for adoptions are answered."""

import json

import msgspec

from bus.decisions import INVALID
from bus.protocol import Envelope, QueueSpec, decode
from bus.worker import Worker, on
from features.adoption.messages import BUILD_ADOPT, BuildAdopted, BuildAdoptRequested
from tests.support.buses import Connect, serving
from tests.support.envelopes import buried, take
from tests.support.ids import uid

BUILD = uid(2, "b")


async def never(request: BuildAdoptRequested) -> None:
    raise AssertionError(request)


async def test_an_adoption_of_nothing_is_answered_with_the_reason(connect: Connect) -> None:
    conductor = Worker("conductor.c1", consumes=[on(BUILD_ADOPT.at(cell="c1"), never)])
    async with serving(connect, conductor) as bus:
        answers = await bus.transport.consume(QueueSpec("answers", ("build.adopted.#",), durable=False), 10)
        body = msgspec.Raw(json.dumps({"build": BUILD, "cell": "c1", "reply_to": "shop"}).encode())
        request = Envelope(id=bus.clock.uuid(), type="", key="build.adopt.c1", body=body)
        await bus.transport.publish([request], expected=[True])
        delivery = await take(answers)
        delivery.done()
        answer = decode(BuildAdopted, delivery.envelope.body)
        assert (answer.outcome, answer.code, answer.build) == ("refused", INVALID, BUILD)
        assert "chosen: the field is missing" in answer.why
        assert delivery.envelope.key.endswith(".shop")
        assert len(await buried(bus.transport)) == 1
