"""The heat map's columns: what each host has and holds, how many more fit, and what moved since."""

from typing import Any

import pytest

from bus.host_marks import DISABLED
from bus.replication import KnownInventory, KnownProvider, KnownTree, TreesFound
from control_room.core.heat import (
    Fleet,
    HostHeat,
    ProviderHeat,
    changed_columns,
    columns,
    natural,
    parse_flavor,
)

Has = dict[str, tuple[int, int, int]]


def a_host(*has: Has, name: str = "h1", **given: Any) -> HostHeat:
    fields = {"root": f"r-{name}", "cell": "c1", "zone": "", "closed": False, **given}
    return HostHeat(name=name, providers=tuple(ProviderHeat(one) for one in has), **fields)


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
def test_how_many_more_fit(
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


def test_what_nobody_reports_is_no_host_and_an_aggregate_may_be_its_zone() -> None:
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
