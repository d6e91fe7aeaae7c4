"""The table of hosts of the control room: states, filters, order and pages."""

from bus.host_health import DISABLED, DRAIN, FORCED_DOWN, HostHealth
from control_room.core.host_table import ROWS, STATES, TableQuery, state_of, table
from control_room.core.hosts import Fleet
from tests.support.trees_found import a_page

CAPACITY = 32


def a_fleet(*hosts: tuple[str, int, tuple[str, ...]]) -> Fleet:
    """Return hosts by name, with so many of 32 VCPU held, and the traits of their root providers."""
    fleet = Fleet()
    for name, used, traits in hosts:
        fleet.take(a_page((name, used), traits=traits))
    return fleet


def health(name: str, **fields: object) -> HostHealth:
    return HostHealth(root=f"r-{name}", host=name, cell="c1", agent="a1", **fields)  # type: ignore[arg-type]


def names(fleet: Fleet, **asked: object) -> list[str]:
    return [row.host.name for row in table(fleet, TableQuery(**asked)).rows]  # type: ignore[arg-type]


FLEET = a_fleet(
    ("h1", 4, ()), ("h2", CAPACITY, ()), ("h10", 8, (DRAIN, DISABLED)), ("h4", 0, (DISABLED,)),
    ("h5", 0, (FORCED_DOWN,)), ("h6", 2, ()), ("h7", 2, ()), ("h8", 0, ()),
)  # fmt: skip
FLEET.set_health({
    "r-h6": health("h6", availability="down", why="no heartbeat"),
    "r-h7": health("h7", enabled=False, why_disabled="no disk"),
    "r-h8": health("h8", availability="unknown"),
})  # fmt: skip


def test_each_state_has_a_word_of_its_own() -> None:
    states = {host.name: state_of(FLEET, host) for host in FLEET.in_order()}
    assert states == {
        "h1": "up", "h2": "full", "h10": "draining", "h4": "disabled", "h5": "forced down", "h6": "down",
        "h7": "disabled", "h8": "unknown",
    }  # fmt: skip
    assert {*states.values()} <= {*STATES}


def test_hosts_that_need_attention_are_first_and_say_why() -> None:
    found = table(FLEET, TableQuery())
    assert [(row.host.name, row.why) for row in found.rows] == [
        ("h6", "no heartbeat"), ("h5", ""), ("h8", ""), ("h4", ""), ("h7", "no disk"), ("h10", ""),
        ("h2", ""), ("h1", ""),
    ]  # fmt: skip


def test_columns_sort_in_both_directions() -> None:
    assert names(FLEET, sort="name") == ["h1", "h2", "h4", "h5", "h6", "h7", "h8", "h10"]
    assert names(FLEET, sort="-VCPU")[:3] == ["h2", "h10", "h1"]
    assert names(FLEET, sort="no such column") == names(FLEET)


def test_filters_combine_and_count_the_hosts_of_each_state() -> None:
    found = table(FLEET, TableQuery(q="H", state="disabled", sort="name"))
    assert ([row.host.name for row in found.rows], found.count) == (["h4", "h7"], 2)
    assert (found.states["disabled"], found.states["up"]) == (2, 1)
    assert names(FLEET, q="1", sort="name") == ["h1", "h10"]
    assert names(FLEET, cell="c2") == []


def test_a_page_after_the_last_one_is_the_last_one() -> None:
    fleet = a_fleet(*((f"h{number}", 0, ()) for number in range(ROWS + 1)))
    found = table(fleet, TableQuery(page=9))
    assert (found.page, found.pages, [row.host.name for row in found.rows]) == (2, 2, [f"h{ROWS}"])
