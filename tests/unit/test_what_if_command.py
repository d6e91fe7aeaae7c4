"""`berth what-if` with a capacity plan: the options that a plan considers, and those that it refuses."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from berth.__main__ import app
from berth.commands import why
from berth.commands.terminal import Cli
from berth.commands.what_if import planned_flavors, show_answer
from berth.operations.boot_options import BootOptions, boot_request
from berth.settings import BadSetting, Settings
from bus.clock import Clock
from bus.decisions import BACKLOG, Decision
from bus.queries import BacklogPlace, DecisionFound, WhatIfAnswered

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
    gang = BootOptions(vcpus=2, memory_mb=100, disk_gb=0, role=("worker:3,vcpus=4", "head:1"))
    worker, head = "3xVCPU:4,MEMORY_MB:100", "1xVCPU:2,MEMORY_MB:100"
    assert planned_flavors(boot_request(gang)) == [worker, head]
    assert planned_flavors(boot_request(BootOptions(vcpus=2, memory_mb=0, disk_gb=0))) == ["VCPU:2"]


def test_the_wait_of_a_request_is_shown() -> None:
    def shown(answer: WhatIfAnswered) -> str:
        text = io.StringIO()
        show_answer(answer, Cli(Settings(), say=Console(file=text, width=200)))
        return text.getvalue()

    now = Clock().now()
    place = BacklogPlace(before=1200, weight=3.0, start_p50=now + 5.5, start_p90=now + 9.5)
    waits = shown(WhatIfAnswered(fits=False, backlog=place, start_p50=now + 300.5, start_p90=now + 600.5))
    assert "before it in its project's backlog: 1,200 requests (weight 3)" in waits
    assert "expected evaluation: 50 % within 5.5 s, 90 % within 9.5 s" in waits
    assert "expected start if it waits: 50 % within 5 min, 90 % within 10 min" in waits
    assert "if it waits: unknown" in shown(WhatIfAnswered(fits=False))
    assert "if it waits" not in shown(WhatIfAnswered(fits=True))


def test_why_shows_when_a_request_in_the_backlog_is_evaluated() -> None:
    text, now = io.StringIO(), Clock().now()
    decision, p50, p90 = Decision(code=BACKLOG), now + 5.5, now + 9.5
    found = DecisionFound(known=True, waits=True, decision=decision, start_p50=p50, start_p90=p90)
    why._show_decided(found, Cli(Settings(), say=Console(file=text, width=200)))
    assert "expected evaluation: 50 % within 5.5 s, 90 % within 9.5 s" in text.getvalue()
    assert "expected start" not in text.getvalue()
