"""Publishers and consumers of all topics: no orphans, no requests out of cells, current documents."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth import topology, wiring
from bus.topics import (
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_GUESTS,
    AGENT_MOVE,
    AGENT_MOVED,
    AGENT_REPORT,
    BUILD_ADOPTED,
    BUILD_DELETED,
    BUILD_ENDED,
    BUILD_REQUESTED,
    CELL_ALLOCATIONS,
    CELL_CLAIM,
    CELL_PROVIDERS,
    CELL_RELEASE,
    EDIT_AGENT,
    FIND_AGENTS,
    FIND_BUILDS,
    FIND_CANDIDATES,
    FIND_INSTANCES,
    FIND_MOVES,
    HOST_FAILED,
    HOST_REPORTED,
    INVENTORY_REPORTED,
    IRONIC_NODE,
    LEASE,
    MOVE_ENDED,
    MOVE_HALF,
    MOVE_PROGRESS,
    QUERIES,
    REPORT_NODES,
    TOPIC_OF,
    TOPICS,
    Query,
    Topic,
)
from bus.worker import Worker

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "topics.md"
BEGIN, END = "<!-- berth topology --markdown -->", "<!-- end of berth topology -->"
WORKERS = wiring.all_workers_without_a_bus()
OF_A_CELL = [worker for worker in WORKERS if worker.name.split(".")[0] in ("conductor", "agent")]


def named(worker: Worker) -> str:
    return worker.name


def test_the_topology_contains_every_worker() -> None:
    kinds = {worker.name.split(".")[0] for worker in WORKERS}
    assert kinds == {"placement", "scheduler", "conductor", "agent", "ironic_sync", "replica", "control_room"}
    assert {worker.name.split(".")[0] for worker in OF_A_CELL} == {"conductor", "agent"}


# No orphans


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
    assert topology.receivers(query, WORKERS) == [answering]


@pytest.mark.parametrize("worker", WORKERS, ids=named)
def test_every_topic_and_query_of_a_worker_is_declared(worker: Worker) -> None:
    assert worker.emits <= set(TOPIC_OF)
    assert {row.address.topic for row in worker.consumes} <= set(TOPICS)
    assert {row.query for row in worker.answers} | set(worker.asks) <= set(QUERIES)


# No calling up


@pytest.mark.parametrize("worker", OF_A_CELL, ids=named)
def test_a_cell_publishes_nothing_that_needs_an_answer_from_above(worker: Worker) -> None:
    assert BUILD_REQUESTED.message not in worker.emits
    assert FIND_CANDIDATES not in worker.asks
    if worker.name.startswith("conductor"):
        assert set(worker.asks) <= {CELL_CLAIM, CELL_RELEASE}
        from_above = {FIND_BUILDS, FIND_INSTANCES, FIND_MOVES, FIND_AGENTS, EDIT_AGENT}
        assert {row.query for row in worker.answers} <= from_above | {LEASE, REPORT_NODES}
    else:
        assert set(worker.asks) <= {
            CELL_ALLOCATIONS,
            CELL_PROVIDERS,
            LEASE,
            REPORT_NODES,
        }  # the last two within
        assert not worker.answers


# What the table of the design gives each side of a cell.
MAY_SAY = {
    "conductor": {
        AGENT_BUILD,
        AGENT_DESTROY,
        AGENT_REPORT,
        AGENT_MOVE,
        AGENT_MOVED,
        BUILD_ENDED,
        BUILD_DELETED,
        BUILD_ADOPTED,
        MOVE_PROGRESS,
        MOVE_ENDED,
        MOVE_HALF,
        HOST_FAILED,
    },
    "agent": {AGENT_REPORT, AGENT_MOVED, AGENT_GUESTS, INVENTORY_REPORTED, HOST_REPORTED, IRONIC_NODE},
}


@pytest.mark.parametrize("worker", OF_A_CELL, ids=named)
def test_a_cell_publishes_only_the_designed_topics(worker: Worker) -> None:
    said = {TOPIC_OF[message] for message in worker.emits}
    assert said <= MAY_SAY[worker.name.split(".")[0]]


@pytest.mark.parametrize("worker", OF_A_CELL, ids=named)
def test_a_cell_consumes_only_its_own_keys(worker: Worker) -> None:
    for row in worker.consumes:
        assert row.address.key in (
            "build.placed.c1",
            "build.delete.c1",
            "build.adopt.c1",
            "build.reshaped.c1",
            "move.placed.c1",
            "move.steer.c1",
            "move.handover.c1",
            "agent.moved.c1",
            "agent.report.c1",
            worker.name.replace("agent.", "agent.build."),
            worker.name.replace("agent.", "agent.destroy."),
            worker.name.replace("agent.", "agent.move."),
            worker.name.replace("agent.", "agent.asked."),
        )


# The pages


def test_the_topic_table_in_the_documents_equals_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = page.partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == topology.markdown(WORKERS).strip(), (
        f"{PAGE.name} is behind the code: put what `berth topology --markdown` prints between the lines "
        f"{BEGIN} and {END}"
    )


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_the_asyncapi_document_is_whole() -> None:
    document = topology.asyncapi(WORKERS)
    document = json.loads(json.dumps(document))  # it is JSON, and nothing but
    assert document["asyncapi"].startswith("3.")
    assert {"title", "version"} <= set(document["info"])
    assert len(list(references(document))) > 100
    for reference in references(document):
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            assert part in found, f"{reference} leads nowhere"
            found = found[part]


def test_the_asyncapi_document_names_publishers_and_consumers() -> None:
    document = topology.asyncapi(WORKERS)
    for topic in TOPICS:
        channel = document["channels"][topic.pattern.replace(".", "_").replace("{", "").replace("}", "")]
        assert channel["address"] == topic.pattern
        assert list(channel["messages"]) == [topic.message.__name__]
        assert set(channel.get("parameters", ())) == {
            part.split("}")[0] for part in topic.pattern.split("{")[1:]
        }
    operations = document["operations"]
    assert {operation["action"] for operation in operations.values()} == {"send", "receive"}
    assert operations["conductor_asks_placement_claim_cell"]["action"] == "send"
    assert operations["placement_answers_placement_claim"]["action"] == "receive"
    assert "conductor_asks_placement_candidates" not in operations
    assert "conductor_sends_build_requested" not in operations
