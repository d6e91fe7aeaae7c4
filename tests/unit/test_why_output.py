"""The output of `berth why`."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from berth.kit import print_funnel, record_output
from berth.kit.terminal import Cli
from berth.settings import Settings
from bus.clock import Clock
from bus.decisions import BACKLOG, Decision, Record, RecordedHost, RecordedScale
from bus.queries import DecisionFound, HeldHost
from control_room.kit.decisions import decision_shown
from scheduler_worker import scores_of
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


SCALES = (RecordedScale("ram", 1.0, 0.0, 10.0),)
BEST = RecordedHost(root=uid(1), host="h1", values=(5.0,))
EQUAL = [RecordedHost(root=uid(number), host=f"h{number}", values=(5.0,)) for number in (2, 3)]
WORSE = RecordedHost(root=uid(4), host="h4", values=(4.0,))


@pytest.mark.parametrize(
    ("others", "changed", "said"),
    [
        ([*EQUAL, WORSE], {}, "3 hosts have the best score: a hash of host and request chose h1"),
        ([WORSE], {}, ""),
        ([WORSE], {"near": 5.0}, "2 hosts have the best score: a hash of host and request chose h1"),
        ([structs.replace(EQUAL[0], chosen=1)], {}, ""),  # h1 was chosen less often before
        ([structs.replace(EQUAL[0], refused="[zone]")], {}, ""),
        (EQUAL, {"subset": 5}, "a hash of the request chose h1 among the 5 best hosts (host_subset_size)"),
    ],
)
def test_a_choice_between_equal_hosts_is_explained(
    others: list[RecordedHost], changed: dict[str, Any], said: str
) -> None:
    record = Record(seed="s", scales=SCALES, hosts=(BEST, *others), **changed)
    decision = Decision(considered=5, record=record)
    text = printed(lambda cli: print_funnel(decision, cli.say, BEST.root))
    assert said in text and ("hash" in text) == bool(said)
    assert decision_shown(decision, scores_of, BEST.root).tie == said


def test_a_held_host_is_shown_with_request_project_and_times() -> None:
    held = HeldHost(root=uid(1), host="h1", request=uid(7), project="p1", since=1e9, until=1e9 + 60)
    line = (
        f"h1 is held for waiting request {uid(7)} of project p1 since 2001-09-09 01:46:40 UTC until it gets"
        " a host, at most until 2001-09-09 01:47:40 UTC\n"
    )
    decided = DecisionFound(known=True, held=(held,))
    assert f"  now {line}" in printed(lambda cli: record_output._show_decided(decided, cli))
