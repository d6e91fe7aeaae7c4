"""Hosts with an agent, in the cells of the settings and in registered ones."""

import pytest

from bus.cells import RegisteredCell
from scheduler_worker.core.host_map import HostMap
from tests.support.plain_source import PlainSource
from tests.support.scheduler_builders import a_candidate


@pytest.mark.parametrize(
    ("named", "registered", "served"),
    [
        (None, (), [True, True]),
        (("c1",), (), [True, False]),
        (("c1",), ("c9",), [True, True]),
        ((), ("c9",), [False, True]),
    ],
)
def test_whose_hosts_are_served(
    named: tuple[str, ...] | None, registered: tuple[str, ...], served: list[bool]
) -> None:
    source = PlainSource([a_candidate(1, cell="c1"), a_candidate(2, cell="c9")])
    source.cells = {name: RegisteredCell(name=name, enabled=False) for name in registered}
    hosts = HostMap(source, named)
    hosts.level()
    assert [bool(hosts.served[host.position]) for host in source.hosts()] == served


def test_a_cell_that_is_registered_or_dropped_later_changes_it() -> None:
    source = PlainSource([a_candidate(1, cell="c9")])
    hosts, (host,) = HostMap(source, ("c1",)), source.hosts()
    for there in (False, True, False):
        source.cells = {"c9": RegisteredCell(name="c9")} if there else {}
        hosts.level()
        assert bool(hosts.served[host.position]) is there
        assert bool(hosts.why_no_agent(host)) is not there


def by_cell(hosts: HostMap, source: PlainSource) -> dict[str, list[str]]:
    names = {host.position: host.host for host in source.hosts()}
    order, firsts = hosts.by_cell.tolist(), hosts.first_of_cell.tolist()
    return {
        cell: [names[at] for at in order[firsts[number] : firsts[number + 1]]]
        for cell, number in hosts.cells.items()
    }


def test_hosts_are_put_in_order_of_their_cells_again_when_one_is_in_another() -> None:
    one, two, three = (a_candidate(index, cell=cell) for index, cell in ((1, "c1"), (2, "c2"), (3, "c1")))
    source = PlainSource([one, two, three])
    hosts = HostMap(source)
    hosts.level()
    assert by_cell(hosts, source) == {"c1": ["host1", "host3"], "c2": ["host2"]}
    source.candidates = [a_candidate(1, cell="c2"), two, three]
    source.layout += 1
    hosts.level()
    assert by_cell(hosts, source) == {"c1": ["host3"], "c2": ["host1", "host2"]}
