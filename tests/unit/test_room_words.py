"""Texts and drawings of the control room: durations, lists, charts, alarms."""

from collections import Counter

import pytest

from bus.messages import HostReported
from bus.reports import HostState
from control_room.core.agent_heartbeats import EXPIRY, Heartbeats
from control_room.core.alarms import ProcessReply, alarms
from control_room.core.charts import HEIGHT, WIDTH, chart, rounded_up
from control_room.core.windows import Tick
from control_room.core.words import duration, listed, rate, several
from tests.support.ids import uid


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (None, "–"), (0.0, "0 ms"), (0.0124, "12 ms"), (0.9999, "1.0 s"), (1.04, "1.0 s"), (59.6, "60 s"),
        (150.0, "2 min"), (7200.0, "2 h"), (200_000.0, "2 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, says: str) -> None:
    assert duration(seconds) == says


def test_amounts() -> None:
    assert [rate(value) for value in (0, 0.26, 99.94, 1340.4)] == ["0", "0.3", "99.9", "1,340"]
    assert [several(number, "host") for number in (0, 1, 2000)] == ["0 hosts", "1 host", "2,000 hosts"]
    assert [listed(list(names)) for names in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.003, 0.005), (1, 1), (1.1, 2), (49, 50), (50.1, 100)])
def test_a_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)


def test_a_line_has_gaps_where_nothing_is_known() -> None:
    drawn = chart([("a", [0.0, None, 10.0, 5.0]), ("b", [None] * 4)])
    assert drawn.top == 10
    assert drawn.lines[0].path == f"M0 {HEIGHT}.0h2M400 0.0L{WIDTH} 60.0"
    assert drawn.lines[1].path == ""
    assert not drawn.empty
    assert chart([("a", [0.0, None])]).empty


def a_report(agent: str, **host: object) -> HostReported:
    state = HostState(root=uid(1, "a"), host="h1", **host)  # type: ignore[arg-type]
    return HostReported(cell="c1", agent=agent, sequence=1, period=10.0, hosts=(state,))


def test_late_agents_and_expired_heartbeats() -> None:
    heartbeats = Heartbeats()
    heartbeats.add(a_report("a1", instances=3, building=1), 0.0)
    heartbeats.add(a_report("a2", enabled=False), 25.0)
    first, second = heartbeats.agents(31.0)
    assert (first.lag(31.0), first.late(31.0), first.instances) == (31.0, True, 3)
    assert not second.late(31.0)
    heartbeats.add(a_report("a1"), 32.0)
    assert not any(agent.late(33.0) for agent in heartbeats.agents(33.0))
    assert [agent.agent for agent in heartbeats.agents(30.0 + EXPIRY)] == ["a1"]
    heartbeats.add_scheduler("s1", 5.0)
    assert heartbeats.schedulers(6.0) == {"s1": 1.0}
    assert heartbeats.schedulers(6.0 + EXPIRY) == {}


def test_alarms_say_what_is_wrong() -> None:
    assert alarms([ProcessReply(name="placement", seconds=0.1)], [], Tick(0), [], 0, 0.0) == []
    heartbeats = Heartbeats()
    heartbeats.add(a_report("a1"), 0.0)
    tick = Tick(0, ends=Counter({"active": 5, "error": 1, "no host": 6}))
    asked = [
        ProcessReply(name="the scheduler", problem="no answer in time"),
        ProcessReply(name="placement", seconds=2.5),
    ]
    said = [
        (alarm.level, alarm.text) for alarm in alarms(asked, heartbeats.agents(60.0), tick, ["c2"], 1, 60.0)
    ]
    assert said == [
        ("bad", "the scheduler does not answer: no answer in time"),
        ("bad", "no heartbeat in time of 1 agent with 1 host (a1; the oldest 60 s ago)"),
        ("bad", "50% of the builds that ended in the last minute found no host (6 of 12)"),
        ("warn", "placement took 2.5 s to answer"),
        ("warn", "cell c2 is disabled: no new builds are placed there"),
        ("warn", "1 request got a host only by the periodic sweep: no event reported the free capacity"),
    ]


def test_few_ends_are_no_alarm() -> None:
    assert alarms([], [], Tick(0, ends=Counter({"error": 4})), [], 0, 0.0) == []
