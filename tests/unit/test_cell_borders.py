"""Messages that cross the border of a cell, and their direction."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from berth import broker_permissions, composition
from berth.ferry.crossings import Crossing, InvalidCrossing, Way, crossings, ways
from berth.kit.broker_permissions import KeyPatterns, Permissions
from bus.clock import Clock
from bus.context import envelope_of, follow
from bus.errors import Undecodable
from bus.messages import BuildDeleted, BuildDeleteRequested
from bus.protocol import Envelope
from bus.queries import FindBuilds
from bus.topics import QUERIES, TOPICS, Topic
from bus.vocabulary import Message
from bus.worker import Worker, cell_of, on
from placement_worker.core.reports import distinct_names
from tests.support.ids import uid

PAGE = Path(__file__).parents[2] / "docs/reference/topics.md"
WORKERS = composition.all_workers_without_a_bus("c1")
CROSSINGS = crossings("c1", WORKERS)
WAYS = ways("c1", WORKERS)
CLOCK = Clock()


def of_c1(worker: Worker) -> bool:
    return cell_of(f"{worker.name}:") == "c1"


def test_a_topic_is_carried_stays_within_or_is_no_cells() -> None:
    for topic in TOPICS:
        inside, outside = [w for w in WORKERS if of_c1(w)], [w for w in WORKERS if not of_c1(w)]
        carried = [crossing for crossing in CROSSINGS if crossing.of is topic]
        for side, other, way in ((inside, outside, Way.OUT), (outside, inside, Way.IN)):
            events = any(row.address.topic is topic for w in other for row in w.consumes)
            reply = any(topic.message in w.emits for w in side)
            if reply and (events or (topic.outsiders and way is Way.OUT and "{cell}" in topic.pattern)):
                assert [crossing.way for crossing in carried] == [way]
        assert bool(carried) == (WAYS.get(topic) in (Way.IN, Way.OUT))
        assert (topic in WAYS) == ("{cell}" in topic.pattern)


def test_a_query_crosses_to_the_side_of_its_answerer() -> None:
    for query in QUERIES:
        carried = [crossing.way for crossing in CROSSINGS if crossing.of is query]
        asked_within = any(query in w.asks for w in WORKERS if of_c1(w))
        answered_within = any(row.query is query for w in WORKERS if of_c1(w) for row in w.answers)
        assert ("{cell}" in query.name) is (asked_within or answered_within)
        assert query.within is asked_within
        ways = {(True, False): [Way.OUT], (False, True): [Way.IN]}
        assert carried == ways.get((asked_within, answered_within), [])


def test_answers_cross_in_both_directions_by_address() -> None:
    assert [(crossing.way, crossing.keys) for crossing in CROSSINGS if crossing.of is None] == [
        (Way.IN, ("reply.c1.*.*",)),
        (Way.OUT, ("reply.-c1.*.*",)),
    ]


def test_every_crossing_has_its_queue_and_there_are_no_loops() -> None:
    assert len({crossing.queue.name for crossing in CROSSINGS}) == len(CROSSINGS)
    keys = [key for crossing in CROSSINGS for key in crossing.keys]
    assert len(set(keys)) == len(keys)
    assert all(crossing.queue.durable and cell_of(crossing.queue.name) == "c1" for crossing in CROSSINGS)


def test_the_reference_of_topics_says_what_crosses_in_which_direction() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    crosses = {row[1].strip(" `").removeprefix("query "): row[-2].strip() for row in rows}
    for crossing in CROSSINGS:
        if crossing.of is not None:  # replies have no row
            name = crossing.of.pattern if isinstance(crossing.of, Topic) else crossing.of.name
            assert crosses[name] == crossing.way.value


class FerriedSaying(Message, frozen=True):
    cell: str


def saying(pattern: str) -> Topic[FerriedSaying]:
    return Topic(pattern, FerriedSaying, "something new", "somebody", "somebody")


async def handle(message: FerriedSaying) -> None: ...


def tables(topic: Topic[Any], says: str, hears: str) -> Sequence[Worker]:
    names = {"in": "conductor.c1", "out": "scheduler"}
    saying = Worker(names[says], announces=frozenset([topic.message]))
    return [saying, Worker(f"{names[hears]}", consumes=[on(topic, handle)])]


def test_a_crossing_topic_without_the_cell_in_its_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = saying("thing.reported")
    monkeypatch.setattr("berth.ferry.crossings.TOPICS", (topic,))
    with pytest.raises(InvalidCrossing, match="does not contain the cell"):
        ways("c1", tables(topic, "in", "out"))


def test_a_topic_that_would_cross_both_ways_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = saying("thing.reported.{cell}")
    monkeypatch.setattr("berth.ferry.crossings.TOPICS", (topic,))
    with pytest.raises(InvalidCrossing, match="endlessly"):
        ways("c1", [*tables(topic, "in", "out"), *tables(topic, "out", "in")])


def crossing(name: str) -> Crossing:
    (found,) = [crossing for crossing in CROSSINGS if crossing.name == name]
    return found


def an_envelope_of(message: Message, key: str) -> Envelope:
    envelope = envelope_of(message, CLOCK)
    envelope.key = key
    return envelope


DELETED = BuildDeleted(build=uid(1), cell="c1", reply_to="me")
DELETE = BuildDeleteRequested(build=uid(1), cell="c1")


@pytest.mark.parametrize(
    ("name", "message", "key", "carried"),
    [
        ("build.delete.c1", DELETE, "build.delete.c1", "build.delete.c1"),
        ("build.deleted.c1", DELETED, "build.deleted.c1.me", "build.deleted.c1.me"),
        # a dead letter that is sent to the queue once more
        ("build.delete.c1", DELETE, "ferry.c1:build.delete.c1", "build.delete.c1"),
        ("build.deleted.c1", DELETED, "ferry.c1:build.deleted.c1", "build.deleted.c1.me"),
        # what has no business there, however it came in
        ("build.delete.c1", DELETE, "build.delete.c2", None),
        ("build.delete.c1", DELETE, "build.requested", None),
        ("build.deleted.c1", DELETED, "build.deleted.c1.me.too", None),
        ("build.delete.c1", BuildDeleteRequested(build=uid(1), cell="c2"), "ferry.c1:build.delete.c1", None),
        ("reply.-c1", DELETED, "ferry.c1:reply.-c1", None),
        ("reply.-c1", DELETED, "reply.c1.a.b", None),
        ("host.failed.c1", DELETED, "ferry.c1:host.failed.c1", None),
    ],
)  # fmt: skip
def test_a_message_crosses_only_by_the_key_of_its_crossing(
    name: str, message: Message, key: str, carried: str | None
) -> None:
    envelope = an_envelope_of(message, key)
    if carried is not None:
        assert crossing(name).key_of(envelope) == carried
        return
    with pytest.raises(Undecodable):
        crossing(name).key_of(envelope)


def test_a_question_that_is_sent_again_has_the_key_of_its_cell() -> None:
    asked = follow(FindBuilds(cell="c1", builds=(uid(1),)), "ferry.c1:ask.cell.builds.c1", CLOCK)
    assert crossing("ask.cell.builds.c1").key_of(asked) == "ask.cell.builds.c1"


@pytest.mark.parametrize(
    ("name", "key", "framed"),
    [
        ("build.ended.c1", "build.ended.c1", False),
        ("build.ended.c1", "build.ended.c1.me", True),
        ("host.reported.c1", "host.reported.c1", True),
        ("ask.placement.claim.c1", "ask.placement.claim.c1", True),
        ("reply.c1", "reply.c1.a.b", True),
    ],
)
def test_messages_for_outsiders_are_not_framed(name: str, key: str, framed: bool) -> None:
    assert crossing(name).framed(key) is framed


def test_answers_need_no_consumer_and_queries_need_one() -> None:
    assert not crossing("reply.c1").expected and not crossing("host.reported.c1").expected
    assert crossing("ask.placement.claim.c1").expected and crossing("build.placed.c1").expected


def may(found: Permissions, exchange: str = "berth") -> KeyPatterns:
    (keys,) = [key for key in found.keys if key.exchange == exchange]
    return keys


MIDDLE, OWN = (
    broker_permissions.of_ferry(CROSSINGS),
    broker_permissions.of_ferry(CROSSINGS, at_cell_broker=True),
)
SAYS_OUT = [
    "inventory.reported.c1", "host.failed.c1", "build.ended.c1", "build.ended.c1.me",
    "ask.placement.claim.c1", "reply.-c1.a.b", "ironic.node.c1.set",
]  # fmt: skip
SAYS_IN = ["build.placed.c1", "build.delete.c1", "ask.cell.builds.c1", "reply.c1.a.b"]
NEVER = [
    "build.requested", "placement.changed", "ask.placement.claim", "reply.-.a.b", "reply.-c2.a.b",
    "agent.build.c1.a", "agent.report.c1", "inventory.reported.c2", "build.placed.c2", "#", "reply.#", "*",
]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "says"), [(MIDDLE, SAYS_OUT), (OWN, SAYS_IN)], ids=["in the middle", "on the cell's own"]
)
def test_the_ferry_may_publish_only_messages_that_cross(found: Permissions, says: Sequence[str]) -> None:
    allowed = [key for key in (*SAYS_OUT, *SAYS_IN, *NEVER) if re.match(may(found).write, key)]
    assert allowed == list(says)


@pytest.mark.parametrize(
    ("found", "way"), [(MIDDLE, Way.IN), (OWN, Way.OUT)], ids=["in the middle", "on the cell's own"]
)
def test_the_ferry_may_read_only_the_keys_it_forwards(found: Permissions, way: Way) -> None:
    bound = [key for crossing in CROSSINGS if crossing.way is way for key in crossing.keys]
    others = [key for crossing in CROSSINGS if crossing.way is not way for key in crossing.keys]
    events = [key for key in (*bound, *others, *NEVER) if re.match(may(found).read, key)]
    assert events == bound


@pytest.mark.parametrize(
    ("name", "in_the_middle", "on_its_own"),
    [
        ("ferry.c1:build.placed.c1", True, True),
        ("ferry.c2:build.placed.c2", False, False),
        ("ferry.c12:x", False, False),
        ("conductor.c1:build.placed.c1", False, False),
        ("placement:inventory.reported.c1", False, False),
        ("berth", False, True),
        ("berth.queues", False, True),
        ("berth.dead", False, True),
        ("berth.delay.100", False, True),
    ],
)  # fmt: skip
def test_the_ferry_declares_its_queues_and_the_shared_ones_of_the_cell(
    name: str, in_the_middle: bool, on_its_own: bool
) -> None:
    assert bool(re.match(MIDDLE.configure, name)) is in_the_middle
    assert bool(re.match(OWN.configure, name)) is on_its_own


@pytest.mark.parametrize(("key", "allowed"), [("letter.c1", True), ("letter", False), ("letter.c2", False)])
def test_dead_letters_of_the_ferry_belong_to_the_cell(key: str, allowed: bool) -> None:
    for found in (MIDDLE, OWN):
        assert bool(re.match(may(found, "berth.dead").write, key)) is allowed


def test_a_duplicate_provider_name_gets_the_cell_as_suffix() -> None:
    assert distinct_names("h", "c2", uid(1)) == ("h@c2", f"h@c2@{uid(1)}")
    assert [len(name) for name in distinct_names("h" * 200, "c2", uid(1))] == [200, 200]
