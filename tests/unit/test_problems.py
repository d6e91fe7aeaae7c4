"""The kinds of problems of the kernel: each is a line with its object, time, consequence and next command."""

from typing import Any

import pytest

from berth import command_table
from berth.__main__ import app
from berth.features import features
from berth.problems.alerts import alerts_yaml
from berth.problems.judgement import (
    DISABLED_DAYS,
    ClosedHost,
    Facts,
    FailedNode,
    LettersFact,
    QueueFact,
    RestartFact,
    WorkerFact,
    problems_of,
)
from berth.problems.kinds import KINDS
from berth.problems.reading import parts
from bus.host_health import HostHealth
from bus.problems import KnownProblem
from tests.support.ids import uid

NOW = 1_800_000_000.0
DAY = 86_400.0


def found(**facts: Any) -> list[KnownProblem]:
    return problems_of(Facts(now=NOW, **facts))


def down(number: int, agent: str = "a1", cell: str = "c1", why: str = "", **fields: Any) -> HostHealth:
    why = why or f"no heartbeat from its agent {agent}"
    name, root = f"h{number}", uid(number)
    given = {"availability": "down", "since": NOW - 100 + number, "why": why, **fields}
    return HostHealth(root=root, host=name, cell=cell, agent=agent, **given)


def closed(number: int, days: float, *, is_forced_down: bool = False) -> ClosedHost:
    since = NOW - days * DAY if days else 0.0
    return ClosedHost(uid(number), f"h{number}", "c1", is_forced_down, since)


def read_queue(name: str = "q", messages: int = 0, later: int = 0, worker: str = "placement") -> QueueFact:
    return QueueFact(name, worker, messages, readers=1, later=later)


def unread_queue(name: str, later: int = 0, worker: str = "placement") -> QueueFact:
    return QueueFact(name, worker, later, later=later)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"workers": (WorkerFact("placement", 0.1),)},
        {"queues": (read_queue(), unread_queue("placement:suspects"))},  # read while it has messages
        {"queues": (read_queue(messages=5000, later=4000),)},  # empty after 4 s
        {"health": (down(1, availability="unknown", why="no heartbeat so far"),)},
        {"closed": (closed(1, DISABLED_DAYS - 1), closed(2, 0.0))},
        {"restarts": (RestartFact("conductor.c1", NOW - 3601),)},
        {"ends": {"c1": (4, 4), "c2": (1, 10)}, "refused": 20},
    ],
)
def test_a_usual_state_is_no_problem(facts: dict[str, Any]) -> None:
    assert found(**facts) == []


@pytest.mark.parametrize(
    ("facts", "kind", "about", "says", "since"),
    [
        ({"broker": " at h:5672"}, "broker-unreachable", "RabbitMQ",
         "No connection of this process to RabbitMQ at h:5672.", 0.0),
        ({"workers": (WorkerFact("scheduler"), WorkerFact("placement", 0.1))}, "worker-silent", "scheduler",
         "No answer from scheduler.", 0.0),
        ({"workers": (WorkerFact("placement", 2.5),)}, "worker-slow", "placement",
         "Slow answers from placement.", 0.0),
        ({"restarts": (RestartFact("conductor.c1", NOW - 60), RestartFact("conductor.c1", NOW - 90))},
         "process-restarted", "conductor.c1",
         "conductor.c1 ended without being stopped and was started again, 2 times in the last hour.",
         NOW - 60),
        ({"letters": LettersFact(15, NOW - 300, ("scheduler:build.requested", "b"))}, "dead-letters",
         "dead letters", "Dead letters: 15, of scheduler:build.requested and b.", NOW - 300),
        ({"queues": (read_queue(), unread_queue("p:x", 3), unread_queue("p:y"))}, "queue-unread", "placement",
         "No consumer of p:x and p:y: 3 messages wait.", 0.0),
        ({"queues": (read_queue("p:x", 2000, 2500),)}, "lag", "p:x",
         "Consumers are behind: 2,500 messages wait in p:x.", 0.0),
        ({"health": (down(1), down(2), down(3, "a2"))}, "agent-late", "agents of c1",
         "No heartbeat from a1 and a2 of cell c1: 3 hosts down.", NOW - 99),
        ({"health": (down(1, why="no heartbeat from it, though its agent a1 reports other hosts"),)},
         "host-down", "h1", "Hosts down: h1.", NOW - 99),
        ({"closed": (closed(2, 1.0, is_forced_down=True), closed(1, 2.0, is_forced_down=True))},
         "host-forced-down", "h1 and h2", "Forced down by an operator: h1 and h2.", NOW - 2 * DAY),
        ({"health": (down(1, availability="up", forced_down=True, why=""),)}, "host-forced-down", "h1",
         "Forced down by an operator: h1.", 0.0),
        ({"closed": (closed(1, 8.0),)}, "host-disabled-long", "h1", "Disabled for more than 7 days: h1.",
         NOW - 8 * DAY),
        ({"health": (down(1, availability="up", enabled=False, why_disabled="no disk."),)},
         "host-disabled-by-agent", "h1", "Disabled by their agents: h1; no disk.", 0.0),
        ({"disabled_cells": ("c2", "c3")}, "cell-disabled", "cell c2 and cell c3",
         "Disabled by an operator: cell c2 and cell c3.", 0.0),
        ({"ends": {"c1": (2, 5)}}, "builds-fail", "builds of c1",
         "More than a tenth of the builds of cell c1 ended in error in the last 15 minutes.", 0.0),
        ({"refused": 21}, "no-host", "builds", "More than 20 builds found no host in half an hour.", 0.0),
        ({"stuck_nodes": (FailedNode("n2", "clean failed", NOW - 5), FailedNode("n1", "clean failed"))},
         "node-stuck", "n1 and n2",
         "Ironic nodes that wait for an operator in the state clean failed: n1 and n2.", NOW - 5),
        ({"ironic": "it is away."}, "ironic-unreachable", "Ironic",
         "Ironic's API cannot be read: it is away.", 0.0),
    ],
)  # fmt: skip
def test_each_trouble_is_one_problem(
    facts: dict[str, Any], kind: str, about: str, says: str, since: float
) -> None:
    [problem] = found(**facts)
    assert (problem.kind, problem.object, problem.says, problem.since) == (kind, about, says, since)


def test_a_frozen_process_is_one_problem_with_its_hosts_and_messages() -> None:
    """One process runs the conductors and agents of both cells."""
    [problem] = found(
        workers=(WorkerFact("placement", 0.1), WorkerFact("conductor.c1"), WorkerFact("conductor.c2")),
        queues=(unread_queue("conductor.c1:x", 7, "conductor.c1"), unread_queue("y", 0, "conductor.c2")),
        health=(down(1), down(2, "a2", "c2")),
    )
    assert problem.kind == "worker-silent"
    more = "(7 messages in their queues, 2 hosts without heartbeats)"
    assert problem.says == f"No answer from conductor.c1 and conductor.c2 {more}."
    assert problem.since == NOW - 99


def test_a_worker_none_of_whose_queues_has_a_consumer_does_not_run() -> None:
    [problem] = found(queues=(unread_queue("nova:x", 2, "nova"), unread_queue("nova:suspects", 0, "nova")))
    assert problem.says == "No answer from nova (2 messages in their queues)."


def test_a_host_that_is_forced_down_is_not_listed_as_down_as_well() -> None:
    health = down(1, why="no heartbeat from it, though its agent a1 reports other hosts")
    [problem] = found(health=(health,), closed=(closed(1, 1.0, is_forced_down=True),))
    assert problem.kind == "host-forced-down"


def test_critical_problems_come_first() -> None:
    severities = [each.severity for each in found(refused=21, broker="", health=(down(1),))]
    assert severities == ["critical", "critical", "warning"]


OF_FEATURES = [
    f"`berth {name}"
    for name, command in command_table.commands(app)
    if command.callback and command.callback.__module__.startswith("features.")
]
EVERY = [*KINDS, *(kind for _, part in parts() for kind in part.kinds)]


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_each_kind_has_a_sentence_a_consequence_and_a_next_step(kind: Any) -> None:
    for text in (kind.says, kind.consequence, kind.do):
        assert text.endswith("."), text
    assert kind.link == "" or kind.link.startswith("/")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_kinds_of_the_kernel_name_no_command_of_a_feature(kind: Any) -> None:
    named = [line for text in (kind.says, kind.consequence, kind.do) for line in OF_FEATURES if line in text]
    assert not named, "a berth without the feature would name a command that does not exist"


def test_names_of_kinds_and_of_alerts_are_unique() -> None:
    assert len({kind.name for kind in EVERY}) == len(EVERY)
    alerts = [kind.alert.name for kind in EVERY if kind.alert]
    assert len(set(alerts)) == len(alerts)


def test_a_deleted_feature_takes_its_kinds_and_alerts_along(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [(name, part) for name, part in parts() if any(kind.alert for kind in part.kinds)]
    if not every:
        pytest.skip("no feature of this berth has an alert")
    deleted, part = every[0]
    names = [kind.alert.name for kind in part.kinds if kind.alert]
    assert all(name in alerts_yaml() for name in names)
    rest = tuple(feature for feature in features() if feature.name != deleted)
    monkeypatch.setattr("berth.problems.reading.features", lambda: rest)
    assert not any(name in alerts_yaml() for name in names)
