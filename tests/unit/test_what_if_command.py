"""`berth what-if` with a capacity plan: the options that a plan considers, and those that it refuses."""

import io
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from rich.console import Console
from typer.testing import CliRunner

from berth.__main__ import app
from berth.commands import what_if, why
from berth.commands.terminal import Cli
from berth.commands.what_if import planned_flavors, show_answer, show_headroom
from berth.operations.boot_options import boot_request, options_named
from berth.settings import BadSetting, Settings
from bus.clock import Clock
from bus.decisions import BACKLOG, Decision
from bus.queries import DecisionFound, HeldHost
from bus.requests import Flavor
from control_room.core.now import Reply
from features.headroom.messages import Headroom, HeadroomFound
from features.reservations.messages import Reservation
from features.what_if.messages import BacklogPlace, WhatIfAnswered
from tests.support.ids import uid

MIX = ("--mix", "VCPU:1")


@pytest.mark.parametrize(
    ("plan", "refused"),
    [
        (MIX, ("--group", "nope")),
        (MIX, ("--pack", "rack")),
        (MIX, ("--spread", "rack:2")),
        (MIX, ("--reservation", "season")),
        (MIX, ("--aggregate", "east")),
        (MIX, ("--priority", "7")),
        (MIX, ("--count", "3")),
        (MIX, ("--preempt",)),
        (MIX, ("--no-room",)),
        (MIX, ("--vcpus", "4")),
        (MIX, ("--role", "worker:3")),
        (("--without", "h1"), ("--host", "h2")),
        (("--add-hosts", "2xVCPU:64"), ("--image", "debian")),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_capacity_plan_refuses_options_that_it_does_not_consider(
    plan: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    ran = CliRunner().invoke(app, ["what-if", *plan, *refused])
    assert isinstance(ran.exception, BadSetting)  # exit code 2
    assert str(ran.exception).startswith(f"{refused[0]}: a capacity plan")


def test_the_roles_of_a_gang_are_the_flavors_of_a_mix() -> None:
    gang = options_named(vcpus=2, memory_mb=100, disk_gb=0, role=("worker:3,vcpus=4", "head:1"))
    worker, head = "3xVCPU:4,MEMORY_MB:100", "1xVCPU:2,MEMORY_MB:100"
    assert planned_flavors(boot_request(gang)) == [worker, head]
    assert planned_flavors(boot_request(options_named(vcpus=2, memory_mb=0, disk_gb=0))) == ["VCPU:2"]


def printed(show: Callable[[Cli], None]) -> str:
    text = io.StringIO()
    show(Cli(Settings(), say=Console(file=text, width=200)))
    return text.getvalue()


NOW = 1_800_000_000.0


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (what_if, why):
        monkeypatch.setattr(module, "Clock", lambda: Clock(lambda: NOW))


@pytest.mark.usefixtures("stopped_clock")
def test_the_wait_of_a_request_is_shown() -> None:
    def shown(answer: WhatIfAnswered) -> str:
        return printed(lambda cli: show_answer(answer, cli))

    place = BacklogPlace(before=1200, weight=3.0, start_p50=NOW + 5.5, start_p90=NOW + 9.5)
    waits = shown(WhatIfAnswered(fits=False, backlog=place, start_p50=NOW + 300.5, start_p90=NOW + 600.5))
    assert "before it in its project's backlog: 1,200 requests (weight 3)" in waits
    assert "expected evaluation: 50 % within 5.5 s, 90 % within 9.5 s" in waits
    assert "expected start if it waits: 50 % within 5 min, 90 % within 10 min" in waits
    assert "if it waits: unknown" in shown(WhatIfAnswered(fits=False))
    assert "if it waits" not in shown(WhatIfAnswered(fits=True))


@pytest.mark.usefixtures("stopped_clock")
def test_why_shows_when_a_request_in_the_backlog_is_evaluated() -> None:
    text = io.StringIO()
    decision, p50, p90 = Decision(code=BACKLOG), NOW + 5.5, NOW + 9.5
    found = DecisionFound(known=True, waits=True, decision=decision, start_p50=p50, start_p90=p90)
    why._show_decided(found, Cli(Settings(), say=Console(file=text, width=200)))
    assert "expected evaluation: 50 % within 5.5 s, 90 % within 9.5 s" in text.getvalue()
    assert "expected start" not in text.getvalue()


def test_a_held_host_is_shown_with_request_project_and_times() -> None:
    held = HeldHost(root=uid(1), host="h1", request=uid(7), project="p1", since=1e9, until=1e9 + 60)
    line = (
        f"h1 is held for waiting request {uid(7)} of project p1 since 2001-09-09 01:46:40 UTC until it gets"
        " a host, at most until 2001-09-09 01:47:40 UTC\n"
    )
    decided = DecisionFound(known=True, held=(held,))
    assert f"  now {line}" in printed(lambda cli: why._show_decided(decided, cli))
    assert f"  {line}" in printed(lambda cli: show_answer(WhatIfAnswered(fits=False, held=(held,)), cli))


def test_a_what_if_answer_says_what_becomes_of_the_headroom() -> None:
    def shown(*headrooms: Headroom, problem: str = "") -> str:
        reply = Reply("placement", None if problem else HeadroomFound(headrooms=headrooms), problem)
        return printed(lambda cli: show_headroom(reply, cli))

    flavor = Flavor(name="any")
    both = Reservation(
        id=uid(1, "7"), name="headroom", flavor=flavor, use="failover", levels=("host", "rack")
    )
    kept = Headroom(reservation=both, kept=True, slots=1, domains=3, instances=2)
    assert shown() == ""
    assert shown(kept) == "  failover headroom for any one host or rack would still be kept\n"
    assert "would end: rack r1: no host (and 1 more)" in shown(
        replace(kept, lacking_then=("rack r1: no host", "b"))
    )
    lost = replace(kept, kept=False, lacking=("rack r1: no host",))
    assert "is already not kept: rack r1: no host\n" in shown(lost)
    assert "would still be kept" in shown(replace(kept, kept=False))  # its slots are not claimed yet
    assert shown(problem="no answer in time") == (
        "  failover headroom afterwards is unknown: placement: no answer in time\n"
    )
