"""Publishers and consumers of all topics: no orphans, no requests out of cells."""

from typing import Any

import pytest

from berth import composition, topology
from berth.features import processes
from bus.topics import QUERIES, TOPIC_OF, TOPICS, Query, Topic
from bus.worker import Worker

BEGIN, END = "<!-- berth reference topology --markdown -->", "<!-- end of berth reference topology -->"
WORKERS = composition.all_workers_without_a_bus()
OF_A_CELL = [worker for worker in WORKERS if worker.name.split(".")[0] in ("conductor", "gateway", "agent")]


def named(worker: Worker) -> str:
    return worker.name


KERNEL = {"placement", "scheduler", "conductor", "agent", "ironic_sync", "replica", "control_room", "rest"}


def test_the_topology_contains_every_worker() -> None:
    kinds = {worker.name.split(".")[0] for worker in WORKERS}
    assert kinds >= KERNEL
    assert len(kinds - KERNEL - {"gateway"}) == len([*processes()])
    assert {worker.name.split(".")[0] for worker in OF_A_CELL} >= {"conductor", "agent"}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.pattern)
def test_every_topic_has_a_publisher_and_a_consumer(topic: Topic[Any]) -> None:
    query = [worker.name for worker in WORKERS for row in worker.consumes if row.address.topic is topic]
    assert query or topic.outsiders
    assert topology.receivers(topic, WORKERS)
    assert topology.senders(topic, WORKERS)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_every_query_has_an_asker_and_an_answerer(query: Query[Any, Any]) -> None:
    assert topology.senders(query, WORKERS)
    answering = query.name.split(".")[0].replace("cell", "conductor")
    assert topology.receivers(query, WORKERS) == [answering if answering in KERNEL else query.target]


@pytest.mark.parametrize("worker", WORKERS, ids=named)
def test_every_topic_and_query_of_a_worker_is_declared(worker: Worker) -> None:
    assert worker.emits <= set(TOPIC_OF)
    assert {row.address.topic for row in worker.consumes} <= set(TOPICS)
    assert {row.query for row in worker.answers} | set(worker.asks) <= set(QUERIES)


@pytest.mark.parametrize("worker", WORKERS, ids=named)
def test_a_message_handed_over_in_memory_is_not_the_only_record_of_its_cause(worker: Worker) -> None:
    """With direct="handled" the handled message is what repeats the published one after a crash: it must be
    at the broker, and its worker must not wait for itself.
    """
    consumed = {row.address.topic for row in worker.consumes}
    for row in worker.consumes:
        waited_for = {TOPIC_OF[type_] for type_ in row.emits if TOPIC_OF[type_].direct == "handled"}
        assert not (waited_for and row.address.topic.direct)
        assert not waited_for & consumed


# The topics that each side of a cell may publish and consume, and the queries that it may send and answer.
PERMITTED = {
    "conductor": (
        "agent.build agent.destroy agent.report agent.move agent.moved build.ended build.deleted"
        " build.conflict move.conflict"
        " build.adopted build.vacate build.preempted move.progressed move.ended move.half host.failed",
        "build.placed build.delete build.end build.vacate build.adopt build.reshaped move.placed move.steer"
        " move.handover agent.moved agent.report",
        "placement.claim placement.release",
        "cell.builds cell.instances cell.moves cell.agents cell.agent cell.sharing cell.lease cell.nodes",
    ),
    "gateway": (
        "host.merged",
        "agent.build.* agent.destroy.* agent.move.* agent.asked.* agent.beat host.merged",
        "agent.order",
        "",
    ),
    "agent": (
        "agent.report agent.moved agent.guests inventory.reported host.reported agent.beat ironic.node",
        "agent.build agent.destroy agent.move agent.asked",
        "placement.allocations placement.providers cell.lease cell.nodes",
        "agent.order",
    ),
}
OF_EVERY_PROCESS = {"process.restarted"}  # a record about itself, which nothing in the cell waits for


@pytest.mark.parametrize("worker", OF_A_CELL, ids=named)
def test_a_cell_uses_only_the_designed_topics_and_queries_of_its_own(worker: Worker) -> None:
    kind, _, agent = worker.name.partition(".")
    publishes, consumes, asks, answers = map(str.split, PERMITTED[kind])
    assert {start(TOPIC_OF[message].pattern) for message in worker.emits} <= {*publishes, *OF_EVERY_PROCESS}
    of_agents = [topic.removesuffix(".*") + f".{agent}.*" for topic in consumes if topic.endswith(".*")]
    keys = [*of_agents, *(f"{topic}.{agent}" for topic in consumes if not topic.endswith(".*"))]
    assert {row.address.key for row in worker.consumes} <= set(keys)
    assert {start(query.name) for query in worker.asks} <= set(asks)
    assert {start(row.query.name) for row in worker.answers} <= set(answers)


def start(pattern: str) -> str:
    return pattern.partition(".{")[0]
