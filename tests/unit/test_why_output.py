"""The output of `berth why`."""

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from berth.kit import record_output
from berth.kit.terminal import Cli
from berth.settings import Settings
from bus.clock import Clock
from bus.decisions import BACKLOG, Decision
from bus.queries import DecisionFound, HeldHost
from tests.support.ids import uid

NOW = 1_800_000_000.0


def printed(show: Callable[[Cli], None]) -> str:
    text = io.StringIO()
    show(Cli(Settings(), say=Console(file=text, width=200)))
    return text.getvalue()


def test_why_shows_when_a_request_in_the_backlog_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_output, "Clock", lambda: Clock(lambda: NOW))
    decision, p50, p90 = Decision(code=BACKLOG), NOW + 5.5, NOW + 9.5
    found = DecisionFound(known=True, waits=True, decision=decision, start_p50=p50, start_p90=p90)
    text = printed(lambda cli: record_output._show_decided(found, cli))
    assert "expected evaluation: 50 % within 5.5 s, 90 % within 9.5 s" in text
    assert "expected start" not in text


def test_a_held_host_is_shown_with_request_project_and_times() -> None:
    held = HeldHost(root=uid(1), host="h1", request=uid(7), project="p1", since=1e9, until=1e9 + 60)
    line = (
        f"h1 is held for waiting request {uid(7)} of project p1 since 2001-09-09 01:46:40 UTC until it gets"
        " a host, at most until 2001-09-09 01:47:40 UTC\n"
    )
    decided = DecisionFound(known=True, held=(held,))
    assert f"  now {line}" in printed(lambda cli: record_output._show_decided(decided, cli))
