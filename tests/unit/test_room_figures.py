"""Figures and texts of the control room: windows, durations, alarms, the heat map."""

from collections import Counter

import pytest

from bus.host_health import DISABLED
from bus.messages import HostReported
from bus.replication import KnownInventory, KnownProvider, KnownTree, TreesFound
from bus.reports import HostState
from control_room.core.heat import Fleet, changed_columns, columns, natural, parse_flavor
from control_room.core.hosts import HostStock, KnownHost
from control_room.core.now import EXPIRY, HEIGHT, WIDTH, Heartbeats, ProcessReply, alarms, chart, rounded_up
from control_room.core.windows import (
    MOST_CAUSES,
    OTHER,
    RECENT,
    TICK,
    TICKS,
    BuildHistory,
    EndedBuild,
    EndStatus,
    Tick,
    bucket,
    latest,
    percentiles,
    summed,
    without_details,
)
from control_room.core.words import duration, listed, rate, several
from tests.support.ids import uid

BEGAN = 1000 * TICK


def an_end(at: float = BEGAN, status: EndStatus = "active", **more: object) -> EndedBuild:
    return EndedBuild(build="b", status=status, at=at, **more)  # type: ignore[arg-type]


def test_ends_are_counted_by_the_tick_and_the_one_under_way_is_left_out() -> None:
    lately = BuildHistory()
    for at in (0.0, 1.0, TICK, 2 * TICK):
        lately.add(an_end(BEGAN + at))
    ticks = lately.ticks(BEGAN + 2 * TICK + 1)
    assert len(ticks) == TICKS
    assert [tick.ends["active"] for tick in ticks[-3:]] == [0, 2, 1]
    assert lately.rate(BEGAN + 2 * TICK + 1) == 3 / (2 * TICK)


def test_events_older_than_the_window_are_forgotten() -> None:
    lately = BuildHistory()
    for number in range(3 * TICKS):
        lately.add(an_end(BEGAN + number * TICK, cause=f"c{number}"))
    assert summed(lately.ticks(BEGAN + 3 * TICKS * TICK)).ends["active"] == TICKS
    assert len(lately._ticks) <= TICKS + 1
    assert summed(lately.ticks(BEGAN + 9 * TICKS * TICK)).ends == {}


def test_a_clock_that_is_put_back_loses_nothing() -> None:
    lately = BuildHistory()
    for at in (0.0, 4 * TICK, 2 * TICK, -9 * TICK):
        lately.add(an_end(BEGAN + at))
    assert summed(lately.ticks(BEGAN + 5 * TICK)).ends["active"] == 4


def test_causes_beyond_a_number_count_together() -> None:
    lately = BuildHistory()
    for number in range(MOST_CAUSES + 5):
        lately.add(an_end(status="error", cause="x" * (number + 1)))
    causes = summed(lately.ticks(BEGAN + TICK)).causes
    assert (len(causes), causes[OTHER]) == (MOST_CAUSES + 1, 5)


def test_only_the_last_builds_are_known_by_name() -> None:
    lately = BuildHistory()
    for number in range(RECENT + 10):
        lately.add(an_end(status="error" if number % 2 else "active", attempts=1))
    assert len(lately.recent) == RECENT
    assert [end.status for end in latest(lately.recent, True, 3)] == ["error"] * 3
    assert len(list(latest(lately.recent, False, 10_000))) == RECENT


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("the disk is full", "the disk is full"),
        ("host h12 took 3.5 s", "host … took … s"),
        ("build 8c1f0a3e-7b2d-4e5f-9a6b-0c1d2e3f4a5b is gone", "build … is gone"),
        ("no image 'debian'", "no image …"),
    ],
)
def test_causes_are_alike_but_for_names_and_numbers(cause: str, kind: str) -> None:
    assert without_details(cause) == kind


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0123, 0.5, 3.0, 250.0])
def test_a_percentile_is_off_by_no_more_than_a_tenth(seconds: float) -> None:
    (half,) = percentiles({bucket(seconds): 7}, (0.5,))
    assert half is not None
    assert seconds <= half <= max(0.001, seconds * 1.1001)


def test_percentiles_are_of_all_that_were_counted() -> None:
    counts = {bucket(0.01): 90, bucket(1.0): 9, bucket(60.0): 1}
    low, high, most = (round(value or 0, 1) for value in percentiles(counts, (0.5, 0.95, 1.0)))
    assert low == 0.0
    assert 1.0 <= high <= 1.1
    assert 60 <= most <= 66
    assert percentiles({}, (0.5,)) == [None]
    assert percentiles({bucket(1e9): 1}, (0.5,)) != [None]


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


def test_amounts_are_of_the_whole_tree() -> None:
    host = a_host({"VCPU": (4, 1, 4)}, {"VCPU": (4, 2, 4)}, {"DISK_GB": (9, 0, 9)})
    assert [host.amounts(name) for name in ("VCPU", "DISK_GB", "PCPU")] == [(8, 3), (9, 0), (0, 0)]


def a_page(*hosts: tuple[str, int], traits: tuple[str, ...] = (), agent: str = "a1") -> TreesFound:
    """Hosts by name, with so many of 16 × 2 − 2 VCPU held."""
    return TreesFound(
        trees=tuple(
            KnownTree(None, None, 0, 1, (KnownProvider(f"r-{name}", name, None, 1, 1, 0, (used,), 0, 0),))
            for name, used in hosts
        ),
        inventories=(KnownInventory("VCPU", 17, 1, 1, 16, 1, 2.0),),
        stocks=((0,),),
        traits=(traits,),
        aggregates=(("agg",),),
        owners=(("c1", agent, "z1"),),
    )


def test_hosts_are_read_from_what_placement_tells() -> None:
    fleet = Fleet(number=7)
    fleet.take(a_page(("h10", 4), ("h2", 0)), 7)
    told = columns(fleet, {"VCPU": 16})
    assert (told["name"], told["group"], told["groups"]) == (["h2", "h10"], [0, 0], [("c1", "z1")])
    assert (told["capacity"], told["used"], told["fits"]) == ({"VCPU": [32, 32]}, {"VCPU": [0, 4]}, [2, 1])
    assert (told["closed"], told["number"]) == ([], 7)


def test_only_reported_roots_are_hosts_and_aggregates_may_be_zones() -> None:
    fleet = Fleet(zones={"agg": "z9"})
    fleet.take(a_page(("h1", 0), agent=""))
    assert fleet.hosts == {}
    fleet.take(a_page(("h1", 0), traits=(DISABLED,)))
    (host,) = fleet.hosts.values()
    assert (host.zone, host.closed) == ("z9", True)


def test_news_are_of_who_moved_and_the_layout_stays_until_one_comes_or_goes() -> None:
    fleet = Fleet(number=1)
    fleet.take(a_page(("h1", 0), ("h2", 0), ("h3", 0)), 1)
    layout = fleet.layout
    fleet.take(a_page(("h2", 8), ("h3", 0)), 2)
    assert fleet.layout == layout
    fleet.number = 2
    told = changed_columns(fleet, 1, {"VCPU": 8})
    assert (told["at"], told["used"], told["fits"]) == ([1], {"VCPU": [8]}, [3])
    assert changed_columns(fleet, 2, {"VCPU": 8})["at"] == []
    fleet.take(a_page(("h4", 0)), 3)
    assert fleet.layout > layout
    layout = fleet.layout
    fleet.take(TreesFound(trees=(KnownTree("r-h4", "", 0, -1),), owners=(("", "", ""),)), 4)
    assert (fleet.layout > layout, "r-h4" in fleet.hosts) == (True, False)


def test_names_are_in_the_order_people_count() -> None:
    assert sorted(["h10", "h2", "a", "h", "h02"], key=natural) == ["a", "h", "h02", "h2", "h10"]


def test_a_flavor_is_read() -> None:
    assert parse_flavor(" VCPU:2, memory_mb:512,") == {"VCPU": 2, "MEMORY_MB": 512}
    for wrong in ("", "VCPU", "VCPU:0", "VCPU:-1", "VCPU:x", "VCPU:99999999999"):
        with pytest.raises(ValueError, match="CLASS:AMOUNT"):
            parse_flavor(wrong)
