"""Publishers and consumers of all topics: no orphans, no requests out of cells, current documents."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth import composition, topology
from berth.features import modules, processes
from berth.settings import Settings
from bus.topics import QUERIES, TOPIC_OF, TOPICS, Query, Topic
from bus.worker import Worker

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "topics.md"
BEGIN, END = "<!-- berth topology --markdown -->", "<!-- end of berth topology -->"
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


# The topics that each side of a cell may publish and consume, and the queries that it may send and answer.
PERMITTED = {
    "conductor": (
        "agent.build agent.destroy agent.report agent.move agent.moved build.ended build.deleted"
        " build.adopted build.vacate build.preempted move.progressed move.ended move.half host.failed",
        "build.placed build.delete build.vacate build.adopt build.reshaped move.placed move.steer"
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


@pytest.mark.parametrize("worker", OF_A_CELL, ids=named)
def test_a_cell_uses_only_the_designed_topics_and_queries_of_its_own(worker: Worker) -> None:
    kind, _, agent = worker.name.partition(".")
    publishes, consumes, asks, answers = map(str.split, PERMITTED[kind])
    assert {start(TOPIC_OF[message].pattern) for message in worker.emits} <= set(publishes)
    of_agents = [topic.removesuffix(".*") + f".{agent}.*" for topic in consumes if topic.endswith(".*")]
    keys = [*of_agents, *(f"{topic}.{agent}" for topic in consumes if not topic.endswith(".*"))]
    assert {row.address.key for row in worker.consumes} <= set(keys)
    assert {start(query.name) for query in worker.asks} <= set(asks)
    assert {start(row.query.name) for row in worker.answers} <= set(answers)


@pytest.mark.parametrize(("cells", "agents_per_cell"), [(1, 1), (2, 3), (4, 2)])
def test_the_page_about_scale_counts_the_durable_queues(cells: int, agents_per_cell: int) -> None:
    text = PAGE.parents[1].joinpath("scale.md").read_text(encoding="utf-8")
    assert "76 + 24*c* + 5*a* with `own`, 76 + 29*c* with `shared`" in text
    agents = cells * agents_per_cell
    delays_and_dead_letters = 10
    settings = Settings().having(
        cells=tuple(f"c{number}" for number in range(cells)),
        simulator={"hosts": agents, "agents_per_cell": agents_per_cell},
    )
    kinds = {"own": 76 + 24 * cells + 5 * agents} | (
        {"shared": 76 + 29 * cells} if modules("agent_queues") else {}
    )
    for kind, expected in kinds.items():
        queues = composition.queues(settings.having(agent_queues=kind))
        names = {spec.name for specs in queues.values() for spec in specs}
        found = len(names) + delays_and_dead_letters
        assert expected // 2 <= found <= expected  # fewer without the queues of deleted features


def start(pattern: str) -> str:
    return pattern.partition(".{")[0]


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


def test_the_asyncapi_document_is_complete() -> None:
    document = topology.asyncapi(WORKERS)
    document = json.loads(json.dumps(document))  # only types that JSON has
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
