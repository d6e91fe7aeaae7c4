"""The way of a boot through the running composition is the one that ARCHITECTURE.md documents."""

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from berth.composition import all_workers_without_a_bus
from bus import topics
from bus.topics import Query, Topic
from bus.worker import Answers, On, Worker

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = re.compile(r"^\| `([^`]+)` \| `([\w/]+)\.py` `([\w.]+)` \| (.*) \|$", re.MULTILINE)
KERNEL = ("bus", "placement_worker", "scheduler_worker", "cell_conductor", "compute_sim", "ironic_sync")
OF_KERNEL = {each for each in vars(topics).values() if isinstance(each, Topic | Query)}


def documented() -> list[tuple[str, str, str, str]]:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## One boot\n")[2].partition("\n## ")[0]
    return DOCUMENTED.findall(section)


@cache
def rows() -> dict[str, On | Answers]:
    """Return the first row for each message, in the order of workers."""
    found: dict[str, On | Answers] = {}
    for worker in all_workers_without_a_bus():
        for row in rows_of(worker):
            found.setdefault(key_of(row), row)
    return found


def rows_of(worker: Worker) -> list[On | Answers]:
    return [*worker.consumes, *worker.answers]


def key_of(row: On | Answers) -> str:
    if isinstance(row, On):
        return row.address.key.replace(".c1-agent1", ".AGENT").replace(".c1", ".CELL")
    return row.query.name


def handler_of(row: On | Answers) -> Any:
    handler: Any = row.handler
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__func__", handler)


def test_the_section_has_every_message_from_the_request_to_the_end() -> None:
    keys = [key for key, *_ in documented()]
    assert keys[0] == "build.requested"
    assert {"placement.claim", "build.placed.CELL", "agent.report.CELL"} <= {*keys}


@pytest.mark.parametrize(("key", "file", "name", "emits"), documented())
def test_a_message_of_a_boot_is_handled_as_documented(key: str, file: str, name: str, emits: str) -> None:
    row = rows()[key]
    handler = handler_of(row)
    assert (handler.__module__, handler.__qualname__) == (file.replace("/", "."), name)
    if named := {*re.findall(r"`(\w+)`", emits)}:
        assert isinstance(row, On)
        assert {message.__name__ for message in row.emits} == named


def test_no_feature_replaces_a_handler_of_the_kernel() -> None:
    replaced = {}
    for worker in all_workers_without_a_bus():
        if not worker.name.startswith(("placement", "scheduler", "conductor", "replica")):
            continue
        for row in rows_of(worker):
            topic = row.address.topic if isinstance(row, On) else row.query
            handler = handler_of(row)
            if isinstance(topic, Topic) and topic.outsiders:
                continue  # a feature receives the answers to its own requests
            if topic in OF_KERNEL and not handler.__module__.startswith(KERNEL):
                replaced[key_of(row)] = f"{handler.__module__}.{handler.__qualname__}"
    assert replaced == {}
