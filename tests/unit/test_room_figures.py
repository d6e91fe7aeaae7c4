"""Figures and texts of the control room: windows, durations, the heat map."""

import socket

import pytest

from berth import control_room_place
from berth.settings import Settings
from bus.host_health import DISABLED
from bus.messages import HostReported
from bus.reports import HostState
from control_room.bus_load import route_of
from control_room.core.builds import (
    MOST_CAUSES,
    OTHER,
    RECENT,
    TICK,
    TICKS,
    BuildHistory,
    EndedBuild,
    EndStatus,
    bucket,
    latest,
    percentiles,
    summed,
)
from control_room.core.hosts import Fleet, parse_flavor
from control_room.core.now import EXPIRY, Heartbeats
from control_room.kit.hosts import HostStock, KnownHost
from control_room.kit.words import duration, listed, rate, several
from control_room.pages.bus import MOST_BODY, letter_details
from tests.support.envelopes import a_letter
from tests.support.ids import uid
from tests.support.trees_found import a_page

BEGAN = 1000 * TICK


def an_end(at: float = BEGAN, status: EndStatus = "active", **more: object) -> EndedBuild:
    return EndedBuild(build="b", status=status, at=at, **more)  # type: ignore[arg-type]


def test_ends_are_counted_in_complete_ticks() -> None:
    read_changed = BuildHistory()
    for at in (0.0, 1.0, TICK, 2 * TICK):
        read_changed.add(an_end(BEGAN + at))
    ticks = read_changed.ticks(BEGAN + 2 * TICK + 1)
    assert len(ticks) == TICKS
    assert [tick.ends["active"] for tick in ticks[-3:]] == [0, 2, 1]
    assert read_changed.rate(BEGAN + 2 * TICK + 1) == 3 / (2 * TICK)


def test_events_older_than_the_window_are_forgotten() -> None:
    read_changed = BuildHistory()
    for number in range(3 * TICKS):
        read_changed.add(an_end(BEGAN + number * TICK, cause=f"c{number}"))
    assert summed(read_changed.ticks(BEGAN + 3 * TICKS * TICK)).ends["active"] == TICKS
    assert len(read_changed._ticks) <= TICKS + 1
    assert summed(read_changed.ticks(BEGAN + 9 * TICKS * TICK)).ends == {}


def test_a_clock_that_is_put_back_loses_nothing() -> None:
    read_changed = BuildHistory()
    for at in (0.0, 4 * TICK, 2 * TICK, -9 * TICK):
        read_changed.add(an_end(BEGAN + at))
    assert summed(read_changed.ticks(BEGAN + 5 * TICK)).ends["active"] == 4


def test_causes_beyond_a_number_count_together() -> None:
    read_changed = BuildHistory()
    for number in range(MOST_CAUSES + 5):
        read_changed.add(an_end(status="error", cause="x" * (number + 1)))
    causes = summed(read_changed.ticks(BEGAN + TICK)).causes
    assert (len(causes), causes[OTHER]) == (MOST_CAUSES + 1, 5)


def test_only_the_last_builds_are_known_by_name() -> None:
    read_changed = BuildHistory()
    for number in range(RECENT + 10):
        read_changed.add(an_end(status="error" if number % 2 else "active", attempts=1))
    assert len(read_changed.recent) == RECENT
    assert [end.status for end in latest(read_changed.recent, True, 3)] == ["error"] * 3
    assert len(list(latest(read_changed.recent, False, 10_000))) == RECENT


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0123, 0.5, 3.0, 250.0])
def test_the_error_of_a_percentile_is_at_most_a_tenth(seconds: float) -> None:
    (half,) = percentiles({bucket(seconds): 7}, (0.5,))
    assert half is not None
    assert seconds <= half <= max(0.001, seconds * 1.1001)


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


Has = dict[str, tuple[int, int, int]]


def a_host(*providers: Has, closed: bool = False) -> KnownHost:
    stocks = [
        HostStock(resource_class=name, capacity=capacity, free=capacity - used, max_unit=max_unit)
        for has in providers
        for name, (capacity, used, max_unit) in has.items()
    ]
    return KnownHost(root="r", name="h1", closed=closed, stocks=tuple(stocks))


@pytest.mark.parametrize(
    ("has", "flavor", "fits"),
    [
        ([{"VCPU": (8, 2, 8)}], {"VCPU": 2}, 3),
        ([{"VCPU": (8, 2, 8), "DISK_GB": (10, 0, 10)}], {"VCPU": 1, "DISK_GB": 4}, 2),
        ([{"VCPU": (8, 9, 8)}], {"VCPU": 1}, 0),  # more is held than there is: its total went down
        ([{"VCPU": (8, 0, 2)}], {"VCPU": 4}, 0),
        ([{"VCPU": (8, 0, 8)}], {"VCPU": 1, "CUSTOM_X": 1}, 0),
        ([{"DISK_GB": (9, 0, 9)}, {"VCPU": (4, 0, 4)}, {"VCPU": (6, 0, 6)}], {"VCPU": 2, "DISK_GB": 1}, 3),
        ([{"VCPU": (8, 0, 8)}], {}, 0),
    ],
)
def test_further_instances_that_fit(
    has: list[dict[str, tuple[int, int, int]]], flavor: dict[str, int], fits: int
) -> None:
    assert a_host(*has).fits(flavor) == fits
    assert a_host(*has, closed=True).fits(flavor) == 0


def test_only_reported_roots_are_hosts_and_aggregates_may_be_zones() -> None:
    fleet = Fleet(zones={"agg": "z9"})
    fleet.take(a_page(("h1", 0), agent=""))
    assert fleet.hosts == {}
    fleet.take(a_page(("h1", 0), traits=(DISABLED,)))
    (host,) = fleet.hosts.values()
    assert (host.zone, host.closed) == ("z9", True)


def test_a_flavor_is_read() -> None:
    assert parse_flavor(" VCPU:2, memory_mb:512,") == {"VCPU": 2, "MEMORY_MB": 512}
    for wrong in ("", "VCPU", "VCPU:0", "VCPU:-1", "VCPU:x", "VCPU:99999999999"):
        with pytest.raises(ValueError, match="CLASS:AMOUNT"):
            parse_flavor(wrong)


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("scheduler:build.requested", "build.requested"),
        ("conductor.c1:build.placed.c1", "build.placed.{cell}"),
        ("agent.c1.a:agent.build.c1.a", "agent.build.{cell}.{agent}"),
        ("ironic_sync:ironic.node.*.*", "ironic.node.{cell}.{event}"),
        ("ask:placement.claim", "placement.claim"),
        ("ask:placement.claim.c1", "placement.claim.{cell}"),
        ("scheduler:build.requested.more", ""),
        ("ask:build.requested", ""),
        ("scheduler:placement.claim", ""),
        ("strange", ""),
        ("", ""),
    ],
)
def test_a_queue_carries_the_topic_or_the_query_of_its_key(queue: str, topic: str) -> None:
    found = route_of(queue)
    assert (found.name if found else "") == topic


@pytest.mark.parametrize(
    ("body", "shown", "about"),
    [
        (b'{"build":"%b","n":[1]}' % uid(7).encode(), '"n": [', (("build", uid(7)),)),
        (b'{"build":"no uuid","request":7}', '"request": 7', ()),
        (b"[1]", "1", ()),
        (b"\xff\x00 no JSON", "\N{REPLACEMENT CHARACTER}\\x00 no JSON", ()),
        ('{"a":"\u202eb"}'.encode(), "\\u202eb", ()),
        (b"[" * 100_000, "[[[", ()),
    ],
)
def test_the_body_of_any_dead_letter_is_shown(
    body: bytes, shown: str, about: tuple[tuple[str, str], ...]
) -> None:
    whole = letter_details(a_letter(body=body))
    assert shown in whole.body
    assert (whole.about, whole.cut) == (about, False)


def test_truncation_is_marked() -> None:
    whole = letter_details(a_letter(body=b"x" * (MOST_BODY + 1), reason="r " * 400, died=1e300, cell="?"))
    assert (len(whole.body), whole.cut) == (MOST_BODY, True)
    assert whole.letter.reason.endswith(" …") and len(whole.reason) == 800
    assert (whole.letter.died, whole.letter.cell) == (0.0, "unknown")


def test_two_control_rooms_that_start_together_use_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither listens yet when the other chooses."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    monkeypatch.setattr(control_room_place, "PORT", port)
    first, second = (control_room_place.with_room_address(Settings()).control_room.http for _ in range(2))
    assert first == f"127.0.0.1:{port}" != second
