"""The timeline of a build: its events, their order and their text."""

from typing import Any

from msgspec.structs import replace

from berth.kit.timeline import Happening, acts_found, in_order, of_acts, of_build, timeline_table
from bus.audit_trail import ActRecord, ActsFound, FindActs, Operator
from bus.messages import Attempt
from bus.queries import BuildStands
from tests.support.conductor_builders import a_placed
from tests.support.ids import uid

FAILED = Attempt(host="host-1", outcome="failed", cause="no disk", started=103.0, ended=104.5)
BUILT = Attempt(host="host-2", outcome="built", started=105.0, ended=107.0)


def a_build(*attempts: Attempt, requested: float = 0.0, waited_since: float = 0.0) -> BuildStands:
    placed = replace(a_placed(1), requested=requested, waited_since=waited_since)
    return BuildStands(build=placed.build, status="active", placed=placed, host="host-2", attempts=attempts)


def test_a_build_tells_its_request_its_wait_and_its_attempts() -> None:
    told = of_build(a_build(FAILED, BUILT, requested=100.0, waited_since=101.0))
    assert [(each.at, each.what.split(": flavor")[0]) for each in told] == [
        (100.0, "requested"),
        (101.0, "began to wait for capacity"),
        (103.0, "attempt 1 on host-1 was ordered"),
        (104.5, "attempt 1 on host-1 failed after 1.5 s: no disk"),
        (105.0, "attempt 2 on host-2 was ordered"),
        (107.0, "attempt 2 on host-2 built after 2.0 s"),
    ]


def test_what_has_no_recorded_time_is_left_out() -> None:
    assert of_build(a_build(Attempt(host="host-1", outcome="built"))) == []


async def test_acts_are_read_from_all_pages() -> None:
    one = ActRecord(id=uid(1), at=99.0, operator=Operator(name="ada"), interface="rest", act="delete")
    pages = {"": ActsFound(records=(one,), last="p2"), "p2": ActsFound(records=(replace(one, id=uid(2)),))}

    class Trail:
        def asker(self, query: Any, timeout: float) -> Any:
            async def ask(question: FindActs) -> ActsFound:
                return pages[question.before]

            return ask

    bus: Any = Trail()
    assert [act.id async for act in acts_found(bus, FindActs(target="host"))] == [uid(1), uid(2)]


def test_acts_name_who_requested_them() -> None:
    who = Operator(name="ada")
    act = ActRecord(id=uid(1), at=99.0, operator=who, interface="command", act="delete", outcome="refused")
    act = replace(act, through="berth delete", detail="it moves")
    assert of_acts([act]) == [Happening(99.0, "delete: refused, it moves", "ada (berth delete)")]


def test_the_first_is_first_with_its_time_and_its_age() -> None:
    later, earlier = Happening(200.0, "built"), Happening(100.0, "requested", "ada")
    assert timeline_table(in_order([later, earlier]), now=290.0).lines == [
        ["1970-01-01 00:01:40 UTC", "3m ago", "requested", "ada"],
        ["1970-01-01 00:03:20 UTC", "90s ago", "built", "-"],
    ]
