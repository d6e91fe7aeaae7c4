"""Findings of `berth doctor`: a sentence and advice for each."""

from typing import Any

import pytest
from msgspec.structs import replace

from berth.doctor.judgement import (
    BerthSeen,
    BrokerSeen,
    DatabaseSeen,
    Finding,
    LettersSeen,
    QueueSeen,
    WorkerSeen,
    exit_code,
    judged,
)

KNOWN = ("0001_first", "0002_more", "0003_last")
WELL = BerthSeen(
    python=(3, 12, 1),
    disk=0.5,
    state_dir=".berth",
    brokers=(BrokerSeen("u@h:5672", "3.12.1", clock=0.3),),
    queues=(QueueSeen("scheduler:build.requested", "scheduler", 3, 2, 1),),
    databases=(
        DatabaseSeen("placement", "postgresql://h/b", "15.3", "", KNOWN[-1], KNOWN, 0.01),
        DatabaseSeen("cell_c1", "sqlite://c1.db", revision=KNOWN[-1], known=KNOWN),
    ),
    workers=(WorkerSeen("placement", 0.01),),
)


def seen(**other: Any) -> BerthSeen:
    return replace(WELL, **other)


def broker(**said: Any) -> dict[str, Any]:
    return {"brokers": (BrokerSeen("u@h:5672", **({"version": "3.12.1"} | said)),)}


def database(**said: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"version": "15.3", "revision": KNOWN[-1], "known": KNOWN}
    return {"databases": (DatabaseSeen("placement", "postgresql://h/b", **(known | said)),)}


def queue(messages: int, later: int, readers: int) -> dict[str, Any]:
    return {"queues": (QueueSeen("q", "scheduler", messages, later, readers),)}


def test_a_sound_berth_has_no_findings() -> None:
    found = judged(WELL)
    assert {finding.level for finding in found} == {"fine"}
    assert {finding.about for finding in found} == {
        "Python", "RabbitMQ u@h:5672", "database placement", "database cell_c1", "worker placement"
    }  # fmt: skip
    assert exit_code(found) == 0


@pytest.mark.parametrize(
    ("other", "code", "about", "says"),
    [
        ({"python": (3, 10, 4)}, 2, "Python", "Python is 3.10.4."),
        ({"disk": 0.05}, 1, "disk", "Of the disk of .berth 5% are free."),
        ({"disk": 0.01}, 2, "disk", "Of the disk of .berth 1% are free."),
        ({"bus": "no berth answers"}, 2, "bus", "no berth answers"),
        (broker(problem="does not answer"), 2, "RabbitMQ u@h:5672", "does not answer."),
        (broker(version="3.8.9"), 1, "RabbitMQ u@h:5672", "It is version 3.8.9."),
        (broker(version="4.0.0-rc.1"), 0, "RabbitMQ u@h:5672", "It lets us in, and is version 4.0.0-rc.1."),
        (broker(refused=("no write access",)), 2, "RabbitMQ u@h:5672", "no write access."),
        (broker(alarms=("disk at a@b",)), 2, "RabbitMQ u@h:5672", "It has an alarm: too little disk at a@b."),
        (broker(stuck=True), 2, "RabbitMQ u@h:5672", "It took no message within 5 seconds."),
        (broker(fresh=True), 1, "RabbitMQ u@h:5672", "Nothing of berth's is there yet."),
        (broker(clock=-2.0), 1, "RabbitMQ u@h:5672", "Its clock is 2.0 s behind this machine's."),
        (broker(clock=31.0), 2, "RabbitMQ u@h:5672", "Its clock is 31.0 s ahead of this machine's."),
        (database(problem="cannot connect"), 2, "database placement", "cannot connect."),
        (database(version="12.9"), 1, "database placement", "PostgreSQL is version 12.9."),
        (database(revision=""), 2, "database placement", "It was never made: it has no tables."),
        (database(revision="0002_more"), 1, "database placement",
         "It is at 0002_more, and 0003_last is the newest."),
        (database(revision="0009_new"), 1, "database placement",
         "It is at 0009_new, which this version does not have."),
        (database(clock=1.5), 1, "database placement", "Its clock is 1.5 s ahead of this machine's."),
        (queue(0, 0, 0), 1, "queue q", "Nobody reads it, and no messages wait."),
        (queue(1, 1, 0), 2, "queue q", "Nobody reads it, and 1 message waits."),
        (queue(2000, 2500, 1), 1, "queue q", "2500 messages wait, and they become more."),
        (queue(2500, 2000, 1), 1, "queue q", "2000 messages wait, and they become fewer."),
        (queue(2000, 2000, 2), 1, "queue q", "2000 messages wait, and they do not become fewer."),
        ({"missing": ("ironic",)}, 1, "worker ironic", "It was never here: none of its queues is there."),
        ({"missing": ("compute.c1",)}, 0, "worker compute.c1",
         "No simulated agent has run: the hosts of this cell need agents of your own."),
        ({"workers": (WorkerSeen("scheduler"),)}, 2, "worker scheduler",
         "It does not answer within 5 seconds."),
        ({"workers": (WorkerSeen("scheduler", 2.5),)}, 1, "worker scheduler", "It took 2.5 s to answer."),
        ({"letters": LettersSeen(3, False, 7300.0, ("a", "b"))}, 1, "dead letters",
         "There are 3 dead letters, the oldest of 2 hours ago; most died in a, b."),
        ({"letters": LettersSeen(1000, True, 30.0, ("a",))}, 1, "dead letters",
         "There are at least 1000 dead letters, the oldest of 30 seconds ago; most died in a."),
    ],
)  # fmt: skip
def test_each_problem_has_a_finding_and_advice(
    other: dict[str, Any], code: int, about: str, says: str
) -> None:
    found = judged(seen(**other))
    assert (about, says) in [(finding.about, finding.says) for finding in found]
    assert exit_code(found) == code
    for finding in found:
        assert bool(finding.do) == (finding.level != "fine"), "what is wrong comes with what to do"
        assert finding.do == "" or finding.do[0].isupper()


def test_an_alarm_explains_why_nothing_is_taken() -> None:
    found = judged(seen(**broker(stuck=True, alarms=("memory at a@b",))))
    assert [finding.says for finding in found if finding.level == "broken"] == [
        "It has an alarm: too little memory at a@b."
    ]


def test_the_worst_comes_first() -> None:
    found = judged(seen(disk=0.05, python=(3, 9), missing=("ironic",)))
    levels = [finding.level for finding in found]
    assert levels == sorted(levels, key=["broken", "warning", "fine"].index)
    assert found[0] == Finding("broken", "Python", "Python is 3.9.", "Use 3.11 or newer.")
