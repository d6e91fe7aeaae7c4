"""On which hosts a scheduler sees somebody build: in the cells of its settings, and in registered ones."""

import pytest

from bus.vocabulary import RegisteredCell
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
        assert bool(hosts.nobody_builds(host)) is not there
