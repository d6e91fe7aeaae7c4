"""Every invalid request is answered: the sender gets the refusal of its kind of request, with the code
`invalid`, the field and the reason, and the message becomes a dead letter.
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from berth.kit.testing import FEATURES, packages
from bus import topics
from bus.decisions import INVALID
from bus.delivery.runner import Bus
from bus.invalid_requests import refusal_of
from bus.messages import BuildCancelled, BuildDeleted, BuildUnplaceable
from bus.projects import FindProjects, ProjectsFound
from bus.protocol import (
    MAX_MESSAGE_BYTES,
    UNVERIFIED,
    Envelope,
    Inbox,
    QueueSpec,
    decode,
    decode_frame,
    encode_frame,
)
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import TOPIC_OF
from bus.vocabulary import UNSAID_ID, Message
from bus.worker import Worker, on, on_many
from features.clients.client_requests import ClientRequests
from features.clients.messages import CLIENT_REQUESTED, ClientEditRequested
from features.moves.messages import (
    MOVE_PROGRESS,
    MOVE_REFUSED,
    MOVE_REQUESTED,
    MOVE_STEER,
    MoveProgress,
    MoveRefused,
)
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.envelopes import buried, take
from tests.support.ids import uid
from tests.support.virtual_time import TurnedClock

ID, BUILD, MOVE = uid(1), uid(2, "b"), uid(3, "d")
FLAVOR = {"name": "small", "vcpus": 1}
ROLE = {"name": "web", "flavor": FLAVOR, "count": 1}
BOOT = {"request": ID, "instances": [BUILD], "flavor": FLAVOR, "project": "p1", "reply_to": "shop"}
DELETE = {"build": BUILD, "reply_to": "shop"}
A_MOVE = {"move": MOVE, "build": BUILD, "kind": "resize", "reply_to": "shop"}
STEER = {"move": MOVE, "build": BUILD, "cell": "c1", "to": "confirm", "reply_to": "shop"}
ANSWERS = (BuildUnplaceable, BuildCancelled, BuildDeleted, MoveRefused, MoveProgress)

Body = dict[str, Any] | bytes


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {other: value for other, value in fields.items() if other != name}


# The invalid action of a client → the field and the reason in the answer
BOOTS_THAT_WAIT: dict[str, tuple[Any, str]] = {
    "a bad wait": (BOOT | {"wait": "banana"}, "wait: Expected how long: 90s"),
    "a number for a wait": (BOOT | {"wait": 30}, "wait: Expected `str | null`"),
    "an unknown field of a part, strictly": (
        BOOT | {"parts": {"waiting": {"wiat": "1h"}}, "strict": True},
        "parts.waiting.wiat: not known here; did you mean wait?",
    ),
    "an unknown field of a role, strictly": (
        BOOT | {"parts": {"topology": {"roles": [ROLE | {"cuont": 2}]}}, "strict": True},
        "parts.topology.roles[0].cuont: not known here; did you mean count?",
    ),
    "a field that contradicts its part": (
        BOOT | {"wait": "1h", "parts": {"waiting": {"wait": "30m"}}},
        "wait: it contradicts parts.waiting.wait",
    ),
    "a default that contradicts its part": (
        BOOT | {"priority": 0, "parts": {"waiting": {"priority": 5}}},
        "priority: it contradicts parts.waiting.priority",
    ),
    "a hint that contradicts its part": (
        BOOT | {"hints": {"group": ID}, "parts": {"groups": {"group": BUILD}}},
        "hints.group: it contradicts parts.groups.group",
    ),
    "a bad level": (BOOT | {"topology": {"spread": "1 rack"}}, "topology.spread: Expected a level, or empty"),
    "a bad level in a part": (
        BOOT | {"parts": {"topology": {"topology": {"pack": "-"}}}},
        "parts.topology.topology.pack: Expected a level, or empty",
    ),
    "a bad priority": (BOOT | {"priority": 10}, "priority: Expected `int` <= 9"),
}
MOVES_THAT_WAIT: dict[str, tuple[Any, str]] = {
    "an unknown field of a part, strictly": (
        A_MOVE | {"parts": {"waiting": {"wiat": "1h"}}, "strict": True},
        "parts.waiting.wiat: not known here; did you mean wait?",
    ),
    "a negative time": (A_MOVE | {"since": -1}, "since: Expected `float` >= 0.0"),
    "a bad wait": (A_MOVE | {"wait": "banana"}, "wait: Expected how long"),
}
BOOTS: dict[str, tuple[Any, str]] = {
    "no flavor": (without(BOOT, "flavor"), "flavor: the field is missing"),
    "no request": (without(BOOT, "request"), "request: the field is missing"),
    "no instances": (without(BOOT, "instances"), "instances: the field is missing"),
    "no name of the flavor": (BOOT | {"flavor": {"vcpus": 1}}, "flavor.name: the field is missing"),
    "a bad uuid": (BOOT | {"request": "mine"}, "request: Expected a lower-case"),
    "a bad uuid of an instance": (BOOT | {"instances": [BUILD, "x"]}, "instances[1]: Expected a lower"),
    "an upper-case uuid": (BOOT | {"request": ID.upper()}, "request: Expected a lower-case"),
    "an empty list": (BOOT | {"instances": []}, "instances: Expected `array` of length >= 1"),
    "negative vcpus": (BOOT | {"flavor": FLAVOR | {"vcpus": -1}}, "flavor.vcpus: Expected `int` >= 0"),
    "a text for a number": (BOOT | {"flavor": FLAVOR | {"vcpus": "2"}}, "flavor.vcpus: Expected `int`, got"),
    "a part of a processor": (BOOT | {"flavor": FLAVOR | {"vcpus": 1.5}}, "flavor.vcpus: Expected `int`"),
    "a huge number": (BOOT | {"flavor": FLAVOR | {"memory_mb": 2**40}}, "flavor.memory_mb: Expected"),
    "a list for a text": (BOOT | {"zone": ["a"]}, "zone: Expected `str`, got `array`"),
    "a long text": (BOOT | {"zone": "z" * 256}, "zone: Expected `str` of length <= 255"),
    "a bad trait": (BOOT | {"root_required": ["a-b"]}, "root_required[0]: Expected upper-case"),
    "a bad hint": (BOOT | {"hints": {"group": "web"}}, "hints.group: Expected a lower-case UUID"),
    "a reply_to with a dot": (BOOT | {"reply_to": "shop.#"}, "reply_to: Expected a name or nothing"),
    "a reply_to that is no text": (BOOT | {"reply_to": 7}, "reply_to: Expected `str`, got `int`"),
    "the character U+0000": (BOOT | {"zone": "a\0b"}, "zone: it contains the character U+0000"),
    "the character U+0000 in a list": (
        BOOT | {"ignore_hosts": ["h1", "h\0"]}, "ignore_hosts[1]: it contains the character U+0000",
    ),
    "the character U+0000 in a key": (
        BOOT | {"metadata": {"a\0b": "x"}}, "metadata: it contains the character U+0000",
    ),
    "a suffix with a dot": (
        BOOT | {"groups": [{"suffix": "a.b", "resources": {"VCPU": 1}}]},
        "groups[0].suffix: Expected a name or nothing: at most 64 letters, digits, _ and -",
    ),
    "an unknown field, strictly": (
        BOOT | {"zoone": "a", "strict": True}, "zoone: not known here; did you mean zone?",
    ),
    "a list for an object": ([BOOT], "message: Expected `object`, got `array`"),
}  # fmt: skip
DELETES: dict[str, tuple[Any, str]] = {
    "no build": (without(DELETE, "build"), "build: the field is missing"),
    "a bad uuid": (DELETE | {"build": "mine"}, "build: Expected a lower-case UUID"),
    "a text for a truth": (DELETE | {"anywhere": "yes"}, "anywhere: Expected `bool`, got `str`"),
    "an unknown field, strictly": (
        DELETE | {"biuld": BUILD, "strict": True}, "biuld: not known here; did you mean build?",
    ),
}  # fmt: skip
MOVES: dict[str, tuple[Any, str]] = {
    "no move": (without(A_MOVE, "move"), "move: the field is missing"),
    "no build": (without(A_MOVE, "build"), "build: the field is missing"),
    "a bad kind": (A_MOVE | {"kind": "banana"}, "kind: Invalid enum value 'banana'"),
    "too many alternates": (A_MOVE | {"alternates": 11}, "alternates: Expected `int` <= 10"),
    "a bad flavor": (A_MOVE | {"flavor": {"name": ""}}, "flavor.name: Expected `str` of length >= 1"),
    "an unknown field, strictly": (
        A_MOVE | {"sourse": "h1", "strict": True}, "sourse: not known here; did you mean source?",
    ),
}  # fmt: skip
STEERS: dict[str, tuple[Any, str]] = {
    "a bad end": (STEER | {"to": "banana"}, "to: Invalid enum value 'banana'"),
    "no cell": (without(STEER, "cell"), "cell: the field is missing"),
    "a bad cell": (STEER | {"cell": "c.1"}, "cell: Expected a name: letters"),
    "an unknown field, strictly": (
        STEER | {"cel": "c1", "strict": True}, "cel: not known here; did you mean cell?",
    ),
}  # fmt: skip


def a_boot(fields: dict[str, Any], client: str = "shop") -> dict[str, Any]:
    return {"client": client, "do": "boot", "message": fields}


ANSWER_OF: dict[str, type[Message]] = {
    "boot": BuildUnplaceable,
    "delete": BuildCancelled,
    "move": MoveRefused,
    "steer": MoveProgress,
}
A_TEXT = json.dumps({"client": "shop", "do": "boot", "message": BOOT}).encode()
# Whole messages of the client `shop`
WHOLE: dict[str, tuple[Body, type[Message], str]] = {
    "JSON cut off": (A_TEXT[:-9], BuildUnplaceable, "not JSON"),
    "a delete cut off": (
        json.dumps({"client": "shop", "do": "delete", "message": DELETE}).encode()[:-1],
        BuildCancelled, "not JSON",
    ),
    "a number that is too large": (
        A_TEXT.replace(b'"vcpus": 1', b'"vcpus": 1e400'), BuildUnplaceable,
        "flavor.vcpus: Number out of range",
    ),
    "not UTF-8": (A_TEXT.replace(b"small", b"\xff\xfe"), BuildUnplaceable, "not JSON"),
    "no JSON at all": (b"boot, please", BuildUnplaceable, "not JSON"),
    "nothing": (b"", BuildUnplaceable, "not JSON"),
    "a number": (b"7", BuildUnplaceable, "Expected `object`, got `int`"),
    "no action": ({"client": "shop", "message": BOOT}, BuildUnplaceable, "do: the field is missing"),
    "an unknown action": (
        {"client": "shop", "do": "bot", "message": BOOT}, BuildUnplaceable, "do: no action bot, only boot, ",
    ),
    "no client": ({"do": "boot", "message": BOOT}, BuildUnplaceable, "client: the field is missing"),
    "another client": (
        {"client": "bank", "do": "boot", "message": BOOT}, BuildUnplaceable, "is a message of client.bank",
    ),
    "a bad client": (
        {"client": "a_b", "do": "boot", "message": BOOT}, BuildUnplaceable, "client: Expected at most",
    ),
    "another client's reply_to": (
        {"client": "shop", "do": "boot", "message": BOOT | {"reply_to": "bank", "flavor": 1}},
        BuildUnplaceable, "flavor: ",
    ),
    "an unknown field beside a strict request": (
        {"client": "shop", "do": "boot", "dos": 1, "message": BOOT | {"strict": True}}, BuildUnplaceable,
        "dos: not known here; did you mean do?",
    ),
}  # fmt: skip
OF_CLIENT: dict[str, tuple[Body, type[Message], str]] = {
    **{
        f"{action}: {what}": ({"client": "shop", "do": action, "message": fields}, ANSWER_OF[action], why)
        for action, cases in (
            ("boot", BOOTS),
            ("delete", DELETES),
            ("move", MOVES),
            ("steer", STEERS),
            *((("boot", BOOTS_THAT_WAIT), ("move", MOVES_THAT_WAIT)) if "waiting" in FEATURES else ()),
        )
        for what, (fields, why) in cases.items()
    },
    **WHOLE,
}
# Messages of operators and of programs with berth's own credentials: key → body
OF_OPERATOR: dict[str, tuple[str, Body, type[Message], str]] = {
    "a boot without flavor": (
        "build.requested", without(BOOT, "flavor"), BuildUnplaceable, "flavor: the field is missing",
    ),
    "a boot that is not JSON": (
        "build.requested", json.dumps(BOOT).encode()[:-1], BuildUnplaceable, "not JSON",
    ),
    "a cancellation of a name": ("build.cancel", DELETE | {"build": "x"}, BuildCancelled, "build: Expected"),
    "a delete of a name": ("build.delete.c1", DELETE | {"build": "x", "cell": "c1"}, BuildDeleted, "build: "),
    "a delete in another cell": ("build.delete.c1", DELETE | {"cell": "c2"}, BuildDeleted, "build.delete.c2"),
    "a move of a bad kind": ("move.requested", A_MOVE | {"kind": "x"}, MoveRefused, "kind: Invalid enum"),
    "a steering to nothing": (
        "move.steer.c1", without(STEER, "to"), MoveProgress, "to: the field is missing",
    ),
    "a steering in another cell": ("move.steer.c1", STEER | {"cell": "c2"}, MoveProgress, "move.steer.c2"),
}  # fmt: skip


@dataclass
class AnsweringRegion:
    bus: Bus
    answers: Inbox

    async def send(self, key: str, body: Body) -> Envelope:
        """Publish a message as another program does: without its type."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        envelope = Envelope(id=self.bus.clock.uuid(), type="", key=key, body=msgspec.Raw(data))
        await self.bus.transport.publish([envelope], expected=[True])
        return envelope

    async def answer(self) -> tuple[Any, Envelope]:
        delivery = await take(self.answers)
        delivery.done()
        envelope = delivery.envelope
        kind = next(kind for kind in ANSWERS if kind.__name__ == envelope.type)
        return decode(kind, envelope.body), envelope


class Handled:
    """Keeps the messages that reach a handler."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def take(self, message: Message) -> None:
        self.messages.append(message)

    async def cancel(self, message: Any) -> BuildCancelled:
        return BuildCancelled(build=message.build, waited=False, reply_to=message.reply_to)

    async def steer(self, messages: Sequence[Any]) -> Sequence[MoveProgress]:
        return [
            MoveProgress(move=each.move, build=each.build, cell="c1", phase="confirm", reply_to=each.reply_to)
            for each in messages
        ]


class UnusedIds:
    """Owners of ids: no id is in use."""

    async def find(self, question: FindProjects) -> ProjectsFound:
        return ProjectsFound()


@pytest.fixture
async def region(connect: Connect) -> AsyncIterator[AnsweringRegion]:
    database = Database("sqlite+aiosqlite://", inline=True)
    await migrate(database, *packages("scheduler"))
    nothing, owners = cast(Any, None), cast(Any, UnusedIds())
    scheduler: Any = SimpleNamespace(clock=TurnedClock(5.0).clock, parts=())
    api = ClientRequests(database, scheduler, nothing, owners, nothing, nothing, tuple)
    await api.edit(ClientEditRequested(client="shop", projects=("p1",)))
    passed_on = [topics.BUILD_REQUESTED, topics.BUILD_CANCEL, MOVE_REQUESTED, MOVE_STEER]
    refused = [topics.BUILD_UNPLACEABLE, topics.BUILD_CANCELLED, MOVE_REFUSED, MOVE_PROGRESS]
    handled = Handled()
    scheduler = Worker(
        "scheduler",
        consumes=[
            on_many(CLIENT_REQUESTED, api.request_many, emits=[*passed_on, *refused, topics.ACTS_RECORDED]),
            on(topics.BUILD_REQUESTED, handled.take),
            on(topics.BUILD_CANCEL, handled.cancel, emits=[topics.BUILD_CANCELLED]),
            on(MOVE_REQUESTED, handled.take),
            on(topics.ACTS_RECORDED, Handled().take),
        ],
    )
    conductor = Worker(
        "conductor.c1",
        consumes=[
            on(topics.BUILD_DELETE.at(cell="c1"), handled.take),
            on_many(MOVE_STEER.at(cell="c1"), handled.steer, emits=[MOVE_PROGRESS]),
        ],
    )
    keys = tuple(f"{TOPIC_OF[kind].at().key}.#" for kind in ANSWERS)
    async with serving(connect, scheduler, conductor) as bus:
        yield AnsweringRegion(bus, await bus.transport.consume(QueueSpec("answers", keys, durable=False), 10))
        assert not handled.messages
    await database.close()


def code_and_reason(answer: Any) -> tuple[str, str]:
    match answer:
        case BuildUnplaceable(reason=why, decision=decision):
            return decision.code, why
        case BuildCancelled(why=why, waited=False, known=False):
            return answer.code, why
        case BuildDeleted(refused=why, known=False):
            return answer.code, why
        case MoveRefused(reason=why):
            return answer.code, why
        case MoveProgress(refused=why):
            return answer.code, why
    raise AssertionError(answer)


@pytest.mark.parametrize(("body", "kind", "why"), OF_CLIENT.values(), ids=OF_CLIENT.keys())
async def test_an_invalid_request_of_a_client_is_answered(
    region: AnsweringRegion, body: Body, kind: Any, why: str
) -> None:
    asked = await region.send("client.shop", body)
    answer, envelope = await region.answer()
    assert type(answer) is kind
    code, reason = code_and_reason(answer)
    assert code == INVALID and why in reason
    assert envelope.key.endswith(".shop") and answer.reply_to == "shop"
    assert envelope.correlation == asked.id
    (letter,) = await buried(region.bus.transport)
    assert letter.id == asked.id
    assert region.answers.get_nowait() is None


@LOCALLY
@pytest.mark.parametrize(("key", "body", "kind", "why"), OF_OPERATOR.values(), ids=OF_OPERATOR.keys())
async def test_an_invalid_request_of_an_operator_is_answered_where_it_says(
    region: AnsweringRegion, key: str, body: Body, kind: Any, why: str
) -> None:
    await region.send(key, body)
    answer, envelope = await region.answer()
    assert type(answer) is kind
    code, reason = code_and_reason(answer)
    assert code == INVALID and why in reason
    assert envelope.key.endswith(".shop")
    assert len(await buried(region.bus.transport)) == 1


@LOCALLY
async def test_an_answer_names_the_ids_that_can_be_read(region: AnsweringRegion) -> None:
    await region.send("client.shop", a_boot(BOOT | {"instances": [BUILD, "x", 3]}))
    answer, _ = await region.answer()
    assert (answer.request, answer.instances) == (ID, (BUILD,))
    await region.send("client.shop", A_TEXT[:-9])
    answer, _ = await region.answer()
    assert answer.request == ID
    await region.send("client.shop", a_boot(BOOT | {"request": "mine"}))
    answer, _ = await region.answer()
    assert answer.request == UNSAID_ID


@LOCALLY
async def test_a_message_that_is_too_large_is_answered_without_its_ids(region: AnsweringRegion) -> None:
    large = BOOT | {"metadata": {"x": "x" * MAX_MESSAGE_BYTES}}
    await region.send("client.shop", a_boot(large))
    answer, envelope = await region.answer()
    assert "the bus carries at most" in answer.reason and envelope.key == "build.unplaceable.shop"


# The routing key of a message, its sender as far as it is known, the queue's binding → address of the answer
SENDERS = {
    "the client in the key": ("client.shop", "", "client.*", "shop"),
    "the client that the broker names, with another's key": ("client.bank", "shop", "client.*", "shop"),
    "a client with its own key at the queue of operators, by CC": (
        "client.shop", "", "build.requested", "shop",
    ),
    "the client that the broker names, with the operators' key": (
        "build.requested", "shop", "build.requested", "shop",
    ),
    "an operator": ("build.requested", "", "build.requested", "bank"),
    "nobody, with a client's key": ("client.bank", UNVERIFIED, "client.*", None),
    "nobody, with the operators' key": ("build.requested", UNVERIFIED, "build.requested", None),
    "a cell, by CC": ("host.failed.c1", "", "build.requested", None),
}  # fmt: skip


@pytest.mark.parametrize(("key", "sender", "bound", "reply_to"), SENDERS.values(), ids=SENDERS.keys())
def test_only_the_sender_that_the_broker_has_verified_is_answered(
    key: str, sender: str, bound: str, reply_to: str | None
) -> None:
    boot = without(BOOT, "flavor") | {"reply_to": "bank"}
    body = a_boot(boot, "bank") if bound == "client.*" else boot
    envelope = Envelope(id="1", type="", key=key, body=msgspec.Raw(json.dumps(body).encode()))
    envelope.sent_by(sender)
    topic = CLIENT_REQUESTED if bound == "client.*" else topics.BUILD_REQUESTED
    answer: Any = refusal_of(topic, bound, key, envelope, "flavor: the field is missing")
    assert (answer.reply_to if answer else None) == reply_to


def test_a_copy_of_an_envelope_does_not_prove_its_sender() -> None:
    envelope = Envelope(id="1", type="", key="client.bank", body=msgspec.Raw(b"{}"))
    envelope.sent_by("shop")
    frame = encode_frame([envelope])
    assert b"shop" not in frame and decode_frame(frame)[0].client == ""


UNKNOWN = {
    "delete": (DELETE | {"biuld": BUILD}, "biuld: not known here; did you mean build?"),
    "steer": (STEER | {"cel": "c1"}, "cel: not known here; did you mean cell?"),
}
OPERATORS_KEY = {"delete": "build.cancel", "steer": "move.steer.c1"}


@LOCALLY
@pytest.mark.parametrize(("action", "body", "note"), [(name, *case) for name, case in UNKNOWN.items()])
async def test_a_field_that_is_not_known_is_a_note_of_the_answer(
    region: AnsweringRegion, action: str, body: dict[str, Any], note: str
) -> None:
    await region.send(OPERATORS_KEY[action], body)
    answer, _ = await region.answer()
    assert code_and_reason(answer)[0] == "" if action == "steer" else answer.known
    assert answer.notes == (note,)
