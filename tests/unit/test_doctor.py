"""Findings of `berth doctor`: a sentence and advice for each."""

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from berth.doctor.judgement import exit_code, judged
from berth.doctor.management import read_management
from berth.doctor.seen import (
    BerthSeen,
    BrokerSeen,
    DatabaseSeen,
    DurableQueue,
    IronicSeen,
    ManagementSeen,
    PackageSeen,
)
from berth.kit.audit_records import OperationMark
from berth.kit.findings import Finding
from berth.operations.guest_differences import CellRecords, differences
from berth.operations.stored_builds import HeldByCell, PlaceByCell
from berth.operations.stored_claims import StoredHolder, TreesOfConsumer
from berth.operations.wrong_allocations import Misheld, Wrong, doubt, leaks, misheld
from berth.problems import kinds
from bus.claims import Choice, holder_consumer
from bus.clock import Clock
from bus.guests import ReportedGuest
from bus.messages import Selection
from bus.vocabulary import Allocations
from tests.support.ids import uid

KNOWN = ("0001_first", "0002_more", "0003_last")
AT_LAST = (
    PackageSeen("placement_worker", KNOWN, KNOWN[-1]),
    PackageSeen("features.x/placement", ("0001",), "0001"),
)
NODES = dict.fromkeys(("n1@a", "n2@b", "n3@c", "n4@d"), True)
WELL = BerthSeen(
    python=(3, 12, 1),
    disk=0.5,
    state_dir=".berth",
    brokers=(BrokerSeen("u@h:5672", "3.12.1", management=ManagementSeen(clock=0.3)),),
    queues=frozenset({"scheduler:build.requested"}),
    problems=(),
    databases=(
        DatabaseSeen("placement", "postgresql://h/b", "15.3", packages=AT_LAST, clock=0.01),
        DatabaseSeen("cell_c1", "sqlite://c1.db", packages=AT_LAST),
    ),
)


def seen(**other: Any) -> BerthSeen:
    return replace(WELL, **other)


def broker(**reply: Any) -> dict[str, Any]:
    return {"brokers": (BrokerSeen("u@h:5672", **({"version": "3.12.1"} | reply)),)}


def cluster(**reply: Any) -> dict[str, Any]:
    return broker(management=ManagementSeen(**reply))


def database(**reply: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"version": "15.3", "packages": AT_LAST}
    return {"databases": (DatabaseSeen("placement", "postgresql://h/b", **(known | reply)),)}


def migrated(*revisions: str) -> dict[str, Any]:
    """Return a database with a worker and a feature at these migrations."""
    at = (replace(package, revision=at) for package, at in zip(AT_LAST, revisions, strict=True))
    return database(packages=tuple(at))


def test_a_sound_berth_has_no_findings() -> None:
    found = judged(WELL)
    assert {finding.level for finding in found} == {"fine"}
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
        (cluster(alarms=("disk at a@b",)), 2, "RabbitMQ u@h:5672",
         "It has an alarm: too little disk at a@b."),
        (broker(stuck=True, alarm="low on disk"), 2, "RabbitMQ u@h:5672", "It has an alarm: low on disk."),
        (cluster(disabled=("a", "b")), 1, "RabbitMQ u@h:5672", "Feature flags that are not enabled: a, b."),
        (cluster(deprecated=("global_qos",)), 1, "RabbitMQ u@h:5672",
         "Deprecated features in use: global_qos."),
        (broker(stuck=True), 2, "RabbitMQ u@h:5672", "It took no message within 5 seconds."),
        (broker(fresh=True), 1, "RabbitMQ u@h:5672", "Nothing of berth's is there yet."),
        (cluster(clock=-2.0), 1, "RabbitMQ u@h:5672", "Its clock is 2.0 s behind this machine's."),
        (cluster(clock=31.0), 2, "RabbitMQ u@h:5672", "Its clock is 31.0 s ahead of this machine's."),
        (cluster(nodes={"n1@a": True, "n2@b": False}), 1, "RabbitMQ u@h:5672",
         "The node n2@b of the cluster does not run."),
        (cluster(nodes=NODES, members={"q": ("n1@a", "n3@c"), "r": ("n1@a", "n2@b", "n3@c")}), 1,
         "RabbitMQ u@h:5672", "Quorum queues with fewer than 3 members: q."),
        (cluster(leaderless=("client.shop.1",)), 2, "RabbitMQ u@h:5672",
         "Quorum queues have no leader: client.shop.1. They take no messages until a majority of their"
         " members runs: berth repeats results for a client's queue until then, and waits for its own"
         " queues."),
        (cluster(nodes={"n1@a": True}, members={"q": ("n1@a",)}), 0, "RabbitMQ u@h:5672",
         "It lets us in, and is version 3.12.1."),
        (database(problem="cannot connect"), 2, "database placement", "cannot connect."),
        (database(version="12.9"), 1, "database placement", "PostgreSQL is version 12.9."),
        (migrated("", ""), 2, "database placement", "It was never made: it has no tables."),
        (migrated("0002_more", "0001"), 1, "database placement",
         "It is at 0002_more of placement_worker, and 0003_last is the newest."),
        (migrated("0003_last", ""), 1, "database placement",
         "It is at no migration of features.x/placement, and 0001 is the newest."),
        (database(unlisted=("features.y/placement",)), 1, "database placement",
         "It has tables of features.y/placement, which this version does not have."),
        (migrated("0009_new", "0001"), 1, "database placement",
         "It is at 0009_new of placement_worker, which this version does not have."),
        (database(clock=1.5), 1, "database placement", "Its clock is 1.5 s ahead of this machine's."),
        ({"missing": ("ironic",)}, 1, "worker ironic", "It has never run: its queues do not exist."),
        ({"missing": ("compute.c1",)}, 0, "worker compute.c1",
         "No simulated agent has run: the hosts of this cell need agents of your own."),
        ({"absent_cells": ("c4",)}, 0, "cell c4",
         "Nothing of it was ever started: this berth does not have the cell."),
        ({"problems": (kinds.WORKER_SILENT.problem("scheduler", workers="scheduler"),)}, 2, "scheduler",
         "No answer from scheduler."),
        ({"problems": (kinds.WORKER_SLOW.problem("scheduler", workers="scheduler"),)}, 1, "scheduler",
         "Slow answers from scheduler."),
        ({"authentication": Finding("broken", "tokens", "None can be checked.", "Do.")}, 2, "tokens",
         "None can be checked."),
        ({"ironic": IronicSeen(nodes=7)}, 0, "Ironic", "All of its 7 nodes have a resource class."),
        ({"ironic": IronicSeen(nodes=7, without_class=3, some=("n1", "n2"))}, 1, "Ironic",
         "3 of 7 nodes have no resource class, so nothing is placed there: n1, n2 and 1 more."),
        ({"ironic": IronicSeen("it is away")}, 2, "Ironic", "It cannot be read: it is away."),
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


def test_nodes_that_stay_partitioned_are_named() -> None:
    [found] = [
        finding
        for finding in judged(seen(**cluster(partitioned=("n1@a", "n3@c"))))
        if finding.level == "broken"
    ]
    assert found.says == "Nodes are partitioned, and stay so: n1@a, n3@c."


def test_durable_classic_queues_of_clients_are_reported_with_their_nodes_and_the_consequence() -> None:
    nodes = {"n1@a": True, "n2@b": True, "n3@c": False}
    queues = {"shop.ends": "n3@c", "cafe.ends": "n1@a"}
    [_, found] = [
        finding
        for finding in judged(seen(**cluster(nodes=nodes, on_one_node=queues)))
        if finding.level == "warning"
    ]
    assert found.says == (
        "Durable classic queues receive berth's messages: cafe.ends on n1@a, shop.ends on n3@c (down: its"
        " bindings are unknown). While its node is down, suspended or cut off, RabbitMQ 3.10 drops messages"
        " for such a queue without an error. RabbitMQ 4 refuses them, also for other queues with the binding."
    )
    assert "`x-queue-type: quorum`" in found.do
    assert "`berth instance list --ended --since TIME --publish`" in found.do


async def test_the_management_api_reports_the_nodes_and_the_members_of_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "/api/nodes": [
            {"name": "n1@a", "running": True, "mem_alarm": False, "disk_free_alarm": True},
            {"name": "n2@b", "running": False, "partitions": ["n1@a"]},
        ],
        "/api/queues/v": [
            {"name": "q", "type": "quorum", "members": ["n1@a"], "online": ["n1@a"], "leader": "n1@a"},
            *(
                {"name": name, "type": "quorum", "members": members, "online": online, "leader": leader}
                for name, members, online, leader in (
                    ("of-two", ["n1@a", "n2@b"], ["n1@a"], "n1@a"),
                    ("elects", ["n1@a", "n2@b", "n3@c"], ["n1@a", "n3@c"], "n2@b"),
                    ("down", ["n2@b"], [], ""),
                    ("leads", ["n1@a", "n2@b", "n3@c"], ["n1@a", "n3@c"], "n3@c"),
                )
            ),
            {"name": "private", "type": "classic", "node": "n1@a"},
            {"name": "ends", "type": "classic", "durable": True, "node": "n1@a"},
            {"name": "mirrored", "type": "classic", "durable": True, "node": "n1@a", "slave_nodes": ["n2@b"]},
            {"name": "of-another", "type": "classic", "durable": True, "node": "n1@a", "state": "running"},
            {"name": "unknown", "type": "classic", "durable": True, "node": "n2@b", "state": "down"},
            {"name": "b:agent.c1.a:suspects", "durable": True, "messages": 3, "consumers": 1},
            {"name": "b:gateway.c1:agent.build.c1.+", "durable": True},
            {"name": "b:gateway.c1:agent.beat.c1.+", "durable": False},
            {"name": "agent.c1.a:suspects", "durable": True},
        ],
        "/api/exchanges/v/b/bindings/source": [
            {"destination": name, "routing_key": "build.ended.#"}
            for name in ("q", "private", "ends", "mirrored")
        ],
        "/api/feature-flags": [
            {"name": "on", "state": "enabled", "stability": "stable"},
            {"name": "off", "state": "disabled", "stability": "stable"},
            {"name": "khepri_db", "state": "disabled", "stability": "experimental"},
        ],
        "/api/deprecated-features/used": [{"name": "global_qos"}],
    }
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.host, request.headers["authorization"]))
        date = {"date": "Thu, 01 Jan 1970 00:00:10 GMT"}
        return httpx.Response(200, json=answers[request.url.path], headers=date)

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    clock = Clock(now=lambda: 10.0)
    found = await read_management("http://mq:15672", "amqp://u:p%40ss@h1,h2/v", clock, exchange="b")
    assert found == ManagementSeen(
        alarms=("disk at n1@a",),
        clock=0.5,
        nodes={"n1@a": True, "n2@b": False},
        partitioned=("n2@b",),
        members={
            "q": ("n1@a",),
            "of-two": ("n1@a", "n2@b"),
            "elects": ("n1@a", "n2@b", "n3@c"),
            "down": ("n2@b",),
            "leads": ("n1@a", "n2@b", "n3@c"),
        },
        leaderless=("of-two", "elects", "down"),
        on_one_node={"ends": "n1@a", "unknown": "n2@b"},
        disabled=("off",),
        deprecated=("global_qos",),
        vhost="v",
        of_agents=(
            DurableQueue("agent.c1.a:suspects", "b:agent.c1.a:suspects", 3, 1),
            DurableQueue("gateway.c1:agent.build.c1.*", "b:gateway.c1:agent.build.c1.+"),
        ),
    )
    assert asked == [("mq", httpx.BasicAuth("u", "p@ss")._auth_header)] * 5


async def test_a_management_api_without_the_newer_addresses_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ 3.10 has no address for deprecated features."""

    def answer(request: httpx.Request) -> httpx.Response:
        date = {"date": "Thu, 01 Jan 1970 00:00:10 GMT"}
        if request.url.path == "/api/nodes":
            return httpx.Response(200, json=[{"name": "n1@a", "running": True}], headers=date)
        return httpx.Response(404, json={"error": "Object Not Found"}, headers=date)

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    found = await read_management("http://mq:15672", "amqp://u:p@h/v", Clock(now=lambda: 10.0))
    assert found == ManagementSeen(clock=0.5, nodes={"n1@a": True}, vhost="v")


async def test_a_silent_management_api_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: httpx.Request) -> httpx.Response:
        return await asyncio.Event().wait()  # type: ignore[return-value]

    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(answer))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    monkeypatch.setattr("berth.doctor.management.ANSWER_SECONDS", 0.01)
    assert await read_management("http://mq:15672", "amqp://u:p@h/v", Clock()) is None


def a_queue(worker: str, topic: str, messages: int = 0, readers: int = 0) -> DurableQueue:
    name = f"{worker}:{topic}"
    return DurableQueue(name, f"b:{name.replace('*', '+')}", messages, readers)


GATEWAY = a_queue("gateway.c1", "agent.build.c1.*", 4)
OF_A, OF_B = a_queue("agent.c1.a", "agent.build.c1.a", 7), a_queue("agent.c1.b", "agent.build.c1.b", 0, 1)
SUSPECTS = a_queue("agent.c1.a", "suspects", 1)
LOST = "Messages in a deleted queue are lost, but conductors repeat the orders of unfinished builds"


def warnings_of(*queues: DurableQueue, expected: str = "", vhost: str = "/") -> list[Finding]:
    known = frozenset({expected} if expected else ())
    management = ManagementSeen(of_agents=queues, vhost=vhost)
    found = judged(seen(**broker(management=management), queues=known))
    return [finding for finding in found if finding.level != "fine"]


def deletion(begin: str, vhost: str = "") -> str:
    awk = f"""awk '$2 == 0 && index($1, "{begin}") == 1 {{print $1}}'"""
    listed = f"rabbitmqctl -q list_queues{vhost} --no-table-headers name consumers"
    return f"`{listed} | {awk} | xargs -n 1 rabbitmqctl{vhost} delete_queue`"


def test_an_agent_of_the_settings_is_reported_by_its_queues_alone() -> None:
    assert warnings_of(OF_A, expected=OF_A.name) == []


def test_of_many_absent_agents_the_deepest_queues_have_findings() -> None:
    queues = [a_queue(f"agent.c1.a{number}", "agent.build", number) for number in range(9)]
    found = {finding.about: finding.says for finding in warnings_of(*queues)}
    assert list(found) == [*(f"queues agent.c1.a{number}" for number in (8, 7, 6, 5, 4)), "queues agent.c1"]
    assert found["queues agent.c1"].startswith("4 further agents do not run, ")
    assert "b:agent.c1.a0:agent.build (no messages)" in found["queues agent.c1"]


@pytest.mark.parametrize("expected", ["", GATEWAY.name], ids=["a running gateway", "the settings"])
def test_queues_of_agents_are_left_behind_if_the_cell_shares_queues(expected: str) -> None:
    gateway = replace(GATEWAY, readers=0 if expected else 1)
    [found] = warnings_of(gateway, OF_A, SUSPECTS, expected=expected)
    assert (found.level, found.about) == ("warning", "queues agent.c1")
    assert found.says.endswith("suspects (1 message). The cell's 1 agent with such queues share queues now.")
    assert deletion("b:agent.c1.") in found.do and LOST in found.do


def test_queues_of_a_gateway_are_left_behind_if_agents_have_their_own() -> None:
    [found] = warnings_of(GATEWAY, OF_B, vhost="v")
    assert (found.level, found.about) == ("warning", "queues gateway.c1")
    assert "no consumer: b:gateway.c1:agent.build.c1.+ (4 messages)." in found.says
    assert deletion("b:gateway.c1:", " -p v") in found.do and LOST in found.do


def test_a_cell_is_judged_apart_from_others() -> None:
    [found] = warnings_of(replace(GATEWAY, readers=1), a_queue("agent.c2.a", "agent.build.c2.a"))
    assert found.about == "queues agent.c2.a"


def test_the_worst_comes_first() -> None:
    found = judged(seen(disk=0.05, python=(3, 9), missing=("ironic",)))
    levels = [finding.level for finding in found]
    assert levels == sorted(levels, key=["broken", "warning", "fine"].index)
    assert found[0] == Finding("broken", "Python", "Python is 3.9.", "Use 3.11 or newer.")


BUILD = uid(1)
A, B, CHILD = uid(1, "a"), uid(2, "a"), uid(3, "a")
TREE = {A: A, B: B, CHILD: A}
HERE = {A: {"VCPU": 2, "MEMORY_MB": 512}}
PLACE = PlaceByCell(
    BUILD, "c1", 7, 2, 3, Selection(root=A, host="host-1", agent="agent-1", choice=Choice(HERE))
)


def found(held: Allocations, generation: int = 3, *, moving: bool = False) -> list[Misheld]:
    trees = {BUILD: TreesOfConsumer("INSTANCE", 0.0, False, {TREE[one]: None for one in held}, [])}
    holds = {BUILD: (generation, held, 0.0)}
    known = (trees, holds) if held else ({}, {})
    return [*misheld({BUILD: PLACE}, *known, {BUILD} if moving else set())]


@pytest.mark.parametrize("held", [HERE, {CHILD: {"VCPU": 2}, A: {"MEMORY_MB": 512}}])
def test_allocations_moved_within_a_tree_are_correct(held: Allocations) -> None:
    assert found(held) == []


def test_allocations_of_a_moving_build_are_judged_by_its_move() -> None:
    assert found({A: {"VCPU": 4}}, moving=True) == found(HERE, 5, moving=True) == []
    [one] = found({B: HERE[A]}, 5, moving=True)
    assert "has started that its cell does not know" in doubt(one, [a_guest()], {"host-2": []})


# Witnesses


def a_guest(attempt: int = 2, root: str = A, held: Allocations = HERE) -> ReportedGuest:
    return ReportedGuest(BUILD, attempt, root, "running", held)


def wrongly(wrong: Wrong) -> Misheld:
    held: dict[Wrong, Allocations] = {
        "missing": {}, "elsewhere": {B: HERE[A]}, "amounts": {A: {"VCPU": 4}}, "outdated": HERE,
    }  # fmt: skip
    [one] = found(held[wrong], 5)
    return one


@pytest.mark.parametrize(
    ("wrong", "here", "there", "why"),
    [
        ("missing", [a_guest()], {}, ""),
        ("elsewhere", [a_guest()], {"host-2": []}, ""),
        ("elsewhere", [a_guest()], {"host-2": [a_guest()]}, ""),  # one agent has both hosts
        ("amounts", [a_guest()], {}, ""),
        ("amounts", [a_guest(held={CHILD: {"VCPU": 2}, A: {"MEMORY_MB": 512}})], {}, ""),
        ("missing", None, {}, ""),
        ("outdated", None, {}, ""),
        ("elsewhere", None, {"host-2": []}, "agent agent-1 of host-1 does not list its guests"),
        ("amounts", None, {}, "agent agent-1 of host-1 does not list its guests"),
        ("elsewhere", [a_guest()], {"host-2": None}, "no agent lists the guests on host-2, where it is held"),
        ("missing", [], {}, "agent agent-1 has no guest of its attempt 2 on host-1"),
        ("amounts", [a_guest(attempt=1)], {}, "agent agent-1 has no guest of its attempt 2 on host-1"),
        ("elsewhere", [a_guest(root=B)], {"host-2": []}, "has no guest of its attempt 2 on host-1"),
        ("elsewhere", [a_guest(), a_guest(3, B)], {"host-2": []}, "has more than one guest of it"),
        ("amounts", [a_guest(held={A: {"VCPU": 4}})], {}, "agent agent-1 has it with 4 VCPU"),
        ("missing", [a_guest(held={A: {"VCPU": 4}})], {}, "agent agent-1 has it with 4 VCPU"),
        ("elsewhere", [a_guest()], {"host-2": [a_guest(1, B)]}, "there is a guest of it on host-2, too"),
    ],
)
def test_allocations_are_healed_only_if_cell_and_agent_agree(
    wrong: Wrong, here: Any, there: Any, why: str
) -> None:
    reply = doubt(wrongly(wrong), here, there)
    assert why in reply and bool(why) == bool(reply)


OLD = 100.0


def kept(attempt: int, type_: str = "MIGRATION", since: float = 50.0) -> StoredHolder:
    return StoredHolder(holder_consumer(BUILD, attempt), 3, BUILD, type_, since)


@pytest.mark.parametrize(
    ("holder", "known", "proven"),
    [
        (kept(1), HeldByCell("moving", 2, mark=OperationMark(operating=True)), []),
        (kept(1), HeldByCell("verifying", 2, mark=OperationMark(operating=True)), []),
        (kept(1), HeldByCell("active", 2, frozenset({1})), []),  # its guest may still be there
        (kept(1, "CLEANUP"), HeldByCell("deleted", 1, frozenset({1})), []),  # a clean-up under way
        (kept(1, since=100.5), HeldByCell("active", 1), []),  # its cell may not know it yet
        (kept(1), HeldByCell("active", 2, unreadable=True), []),
        (kept(1), HeldByCell("active", 2), [True]),  # its move is over
        (kept(2), HeldByCell("deleted", 2), [True]),
        (kept(1), HeldByCell("shelved", 1), [True]),
        (kept(1, "CLEANUP"), HeldByCell("active", 2, frozenset({2})), [True]),  # a clean-up is over
        (kept(1), HeldByCell("active", 1), [False]),  # by its cell, its guest is there
        (kept(3), HeldByCell("active", 2), [False]),  # ahead of its cell
        (kept(99), HeldByCell("active", 2), [False]),  # of no known attempt
    ],
)
def test_a_holder_of_no_known_attempt_leaks_and_is_released_only_if_confirmed(
    holder: StoredHolder, known: HeldByCell, proven: list[bool]
) -> None:
    found = list(leaks([holder], {BUILD: known}, all_read=True, old=OLD))
    assert [leak.proven for leak in found] == proven
    assert all((leak.consumer, leak.generation) == (holder.consumer, 3) for leak in found)


def test_a_leak_is_not_confirmed_if_the_source_cell_was_not_read() -> None:
    came = HeldByCell("active", 2, mark=OperationMark(came=True))
    for all_read in (True, False):
        (leak,) = leaks([kept(1)], {BUILD: came}, all_read=all_read, old=OLD)
        assert leak.proven is all_read


def test_attempts_known_to_either_of_two_cells_are_no_leaks() -> None:
    here = HeldByCell("active", 2, mark=OperationMark(came=True))
    gone = HeldByCell("moved", 1, frozenset({1}), mark=OperationMark(left=True))
    for both in (here.merged_with(gone), gone.merged_with(here)):
        assert (both.status, both.attempt, both.left) == ("active", 2, frozenset({1}))
        assert list(leaks([kept(1)], {BUILD: both}, all_read=True, old=OLD)) == []


@pytest.mark.parametrize("all_read", [True, False])
def test_a_leak_of_an_unknown_build_is_not_confirmed(all_read: bool) -> None:
    found = list(leaks([kept(1)], {}, all_read=all_read, old=OLD))
    assert [leak.proven for leak in found] == ([False] if all_read else [])


RECORDED, ROOT = uid(1), uid(1, "a")
ACTIVE = PlaceByCell(RECORDED, "c1", 1, 1, 1, Selection(root=ROOT, host="h1", agent="a1", choice=Choice({})))


def test_agents_without_an_answer_have_no_differences() -> None:
    assert differences({}, CellRecords({RECORDED}, {RECORDED: ACTIVE}, set())) == []
