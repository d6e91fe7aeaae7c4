"""The output of `berth request what-if`."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from berth.kit import Cli, Settings
from bus.clock import Clock
from bus.decisions import Decision
from bus.queries import HeldHost
from features.what_if import commands
from features.what_if.commands import show_answer
from features.what_if.messages import BacklogPlace, WhatIfAnswered
from tests.support.ids import uid


def printed(show: Callable[[Cli], None]) -> str:
    text = io.StringIO()
    show(Cli(Settings(), say=Console(file=text, width=200)))
    return text.getvalue()


NOW = 1_800_000_000.0


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "Clock", lambda: Clock(lambda: NOW))


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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("quota", "the request would be refused [quota]: 1 used"),
        ("unreadable", "the request is invalid: 1 used"),
        ("", "the request was not evaluated: 1 used"),
    ],
)
def test_only_an_invalid_request_is_called_invalid(code: str, said: str) -> None:
    answer = WhatIfAnswered(fits=False, refusal="1 used", decision=Decision(code=code))
    assert printed(lambda cli: show_answer(answer, cli)) == f"{said}\n"


def test_a_held_host_is_shown_with_request_project_and_times() -> None:
    held = HeldHost(root=uid(1), host="h1", request=uid(7), project="p1", since=1e9, until=1e9 + 60)
    line = (
        f"h1 is held for waiting request {uid(7)} of project p1 since 2001-09-09 01:46:40 UTC until it gets"
        " a host, at most until 2001-09-09 01:47:40 UTC\n"
    )
    assert f"  {line}" in printed(lambda cli: show_answer(WhatIfAnswered(fits=False, held=(held,)), cli))
