"""Health of hosts from heartbeats and stored records: up, down or unknown."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bus.cells import RegisteredCell
from bus.host_health import HostHealth
from bus.messages import HostReported
from scheduler_worker import hosts
from scheduler_worker.build_counts import RECENT
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.rules import enabled, up
from scheduler_worker.hosts import HostBook
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.ranking_builders import a_hall, free
from tests.support.rule_builders import ASKED, a_wish, recent_builds, spaced_source, the_facts
from tests.support.scheduler_builders import a_candidate, a_heartbeat, a_request, a_state


def reported(book: HostBook) -> tuple[int, set[str]]:
    """Return how many hosts the book has reports of, and their cells."""
    return book._count, set(book._hosts)


AGENT = "agent"
HOSTS = [replace(the_facts(number), agent=AGENT) for number in (1, 2, 3)]
MOMENT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def a_report(*numbers: int, sequence: int, agent: str = AGENT, partial: bool = False) -> HostReported:
    states = tuple(a_state(number) for number in numbers)
    return HostReported(cell="cell1", agent=agent, sequence=sequence, partial=partial, hosts=states)


def reasons(book: HostBook, source: RecordingSource, now: float) -> list[str]:
    """Why each host is refused, empty where it is admitted; the arrays must agree with the sentences."""
    seen, search = book.snapshot(source, now), source.search(ASKED)
    facts = [seen.facts(search, position) for position in search.positions.tolist()]
    whys = [book.why_down(fact.cell, fact.root, fact.agent, now) for fact in facts]
    assert [fact.down for fact in facts] == whys
    return [up().refuses(fact, a_wish()) or enabled().refuses(fact, a_wish()) or "" for fact in facts]


def unknown(book: HostBook, source: RecordingSource, now: float) -> list[bool]:
    seen = book.snapshot(source, now).unknown
    return [seen is not None and seen.item(position) for position in source.search(ASKED).positions.tolist()]


def a_record(number: int, **fields: object) -> HostHealth:
    facts = HOSTS[number - 1]
    return HostHealth(root=facts.root, host=facts.host, cell=facts.cell, agent=facts.agent, **fields)  # type: ignore[arg-type]


def test_a_host_without_heartbeats_is_down_though_its_agent_reports_other_hosts() -> None:
    book, source = HostBook(0.0, grace=0.0), spaced_source(HOSTS)
    book.handle(a_report(1, 2, 3, sequence=1), 0.0)
    for second in range(1, 31):
        book.handle(a_report(1, 3, sequence=second + 1), float(second))
    assert reasons(book, source, 30.0) == ["", "", ""]
    book.handle(a_report(1, 3, sequence=40), 31.5)
    why = "down: no heartbeat from it, though its agent agent reports other hosts, for 32 s"
    assert reasons(book, source, 31.5) == ["", why, ""]
    book.handle(a_report(2, sequence=41), 31.6)
    assert reasons(book, source, 31.6) == ["", "", ""]


def test_a_host_that_placement_has_from_now_on_may_take_as_long_for_its_first_heartbeat() -> None:
    book, source = HostBook(0.0, grace=0.0), spaced_source(HOSTS[:1])
    for second in range(61):
        book.handle(a_report(1, sequence=second + 1), float(second))
    assert reasons(book, source, 60.0) == [""]
    source.memory.index = spaced_source(HOSTS[:2]).memory.index
    assert (reasons(book, source, 61.0), unknown(book, source, 61.0)) == (["", ""], [False, True])


def test_partial_reports_of_an_agent_keep_all_its_hosts_up() -> None:
    book, source = HostBook(0.0, grace=0.0), spaced_source(HOSTS)
    book.restore([a_record(3, availability="down", why="no heartbeat from its agent agent")])
    for second in range(61):
        hosts = (1,) if second == 0 else ()
        book.handle(a_report(*hosts, sequence=second + 1, partial=True), float(second))
    assert reasons(book, source, 60.0) == ["", "", ""]


@pytest.mark.parametrize("seed", range(6))
def test_the_arrays_agree_with_the_sentences(seed: int) -> None:
    chance = Random(seed)
    facts = [replace(the_facts(number), agent=f"agent{number % 4}") for number in range(1, 13)]
    book, source, now = HostBook(0.0, grace=chance.choice((0.0, 30.0))), spaced_source(facts), 0.0
    partial = chance.randrange(4)
    records = [replace_record(fact.root, fact.agent, chance) for fact in facts if chance.random() < 0.3]
    book.restore(records)
    for sequence in range(1, 60):
        now += chance.choice((1.0, 2.0, 5.0))
        if chance.random() < 0.7:
            number = chance.randrange(4)
            hosts = [index for index in range(1, 13) if index % 4 == number and chance.random() < 0.5]
            agent = f"agent{number}"
            book.handle(a_report(*hosts, sequence=sequence, agent=agent, partial=number == partial), now)
        else:
            book.listened(now)
        reasons(book, source, now)


def replace_record(root: str, agent: str, chance: Random) -> HostHealth:
    known = HostHealth(root=root, host="h", cell="cell1", agent=agent, why="x")
    return replace(known, availability=chance.choice(("up", "down")))


def test_a_forced_host_that_is_down_is_refused() -> None:
    hall = a_hall(free(1, 9000), free(2, 5000), states=[a_state(2)])
    hall.book.restore([replace(DOWN, agent="agent1")])
    ranking = hall.rank(a_request(forced_host="host1"))
    assert ranking.take() is None
    lacks = {miss.host: miss.lacks for miss in ranking.verdicts.shortage().nearest}
    assert lacks["host1"] == "down since 2023-11-14 22:13:20 UTC: no heartbeat from it"


DOWN = a_record(1, availability="down", since=MOMENT, why="no heartbeat from it")


ROOT = uid(1, "c")


def a_book(**fields: float) -> HostBook:
    return HostBook(0.0, **fields)


def load_of(book: HostBook) -> float | None:
    state = book.state("cell1", ROOT)
    assert state is not None
    return state.load


def listened(book: HostBook, start: float, end: float) -> float:
    """Something came in every second: requests, or answers."""
    for second in range(int(start), int(end) + 1):
        book.listened(float(second))
    return end


@pytest.mark.parametrize(
    ("period", "after", "up"),
    [(10, 30, True), (10, 31, False), (1, 10, True), (1, 11, False), (60, 180, True), (60, 181, False)],
)
def test_a_host_is_up_for_three_periods_and_at_least_ten_seconds(
    period: float, after: float, up: bool
) -> None:
    book = a_book(grace=1)
    book.handle(HostReported(cell="cell1", agent="agent1", sequence=1, period=period, hosts=()), 100.0)
    for second in range(101, 101 + int(after)):
        book.handle(a_heartbeat(2, sequence=second), second)
    why = book.down("cell1", "agent1", 100.0 + after)
    assert (why == "") == up
    if not up:
        assert why == f"down: no heartbeat from its agent agent1 for {after:.0f} s"


def heartbeat_of(agent: str, sequence: int, load: float, run: str = "") -> HostReported:
    states = (a_state(load=load),)
    return HostReported(cell="cell1", agent=agent, sequence=sequence, run=run, hosts=states)


@pytest.mark.parametrize(
    ("reports", "load"),
    [
        ([("a", 5, 0.5), ("a", 4, 0.4), ("a", 5, 0.9)], 0.5),
        ([("a", 5, 0.5), ("a", 6, 0.6)], 0.6),
        ([("a", 2**60, 0.5, "one"), ("a", 7, 0.1, "two"), ("a", 6, 0.9, "two")], 0.1),
        ([("old", 900, 0.5), ("new", 1, 0.7)], 0.7),
    ],
    ids=["older and repeated", "newer", "of a new run: its clock was a year ahead", "of another agent"],
)
def test_the_latest_report_of_a_host_counts(reports: list[tuple[Any, ...]], load: float) -> None:
    book = a_book()
    for now, report in enumerate(reports):
        book.handle(heartbeat_of(*report), float(now))
    assert load_of(book) == load
    assert reported(book) == (1, {"cell1"})


def test_an_agent_that_was_silent_for_long_may_count_from_the_beginning() -> None:
    book = a_book(grace=1)
    book.handle(a_heartbeat(sequence=500, load=0.5), 0.0)
    book.handle(a_heartbeat(sequence=1, load=0.1), listened(book, 1, 31))
    assert load_of(book) == 0.1
    assert book.down("cell1", "agent1", listened(book, 31, 40)) == ""


@pytest.mark.parametrize(("period", "away"), [(1.0, 19.0), (10.0, 3600.0), (60.0, 120.0)])
def test_silence_of_all_agents_is_not_held_against_them(period: float, away: float) -> None:
    book, agents = a_book(grace=1), [f"agent{number}" for number in range(5)]

    def reports(sequence: int, now: float, some: list[str] = agents) -> None:
        for agent in some:
            report = HostReported(cell="cell1", agent=agent, sequence=sequence, period=period, hosts=())
            book.handle(report, now)

    for index in range(4):
        reports(index, index * period)
    last = 3 * period
    back = last + away
    book.listened(back)
    assert [book.down("cell1", agent, back) for agent in agents] == [""] * 5
    reports(5, back + period / 2, agents[:3])
    listened(book, back + period / 2, back + period)
    reports(6, back + period, agents[3:])
    assert [book.down("cell1", agent, back + period) for agent in agents] == [""] * 5


def test_hosts_without_reports_for_very_long_are_forgotten() -> None:
    book = a_book(grace=1)
    for number in range(1000):
        book.handle(a_heartbeat(number, cell=f"forged{number}", zone=f"z{number}"), 0.0)
    assert reported(book)[0] == len(reported(book)[1]) == 1000
    for second in range(5, 700, 5):
        book.handle(a_heartbeat(1, sequence=second), float(second))
    assert reported(book) == (1, {"cell1"})
    assert book.down("cell1", "agent2", 700.0) == "down: no heartbeat from its agent agent2"


def test_a_cell_with_too_many_hosts_loses_its_oldest_and_no_host_of_another_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "MOST_HOSTS", 10)
    book = a_book(grace=1)
    book.handle(a_heartbeat(1), 0.0)
    for number in range(100):
        book.handle(a_heartbeat(1000 + number, cell="cell2"), 5.0)
        book.handle(a_heartbeat(2, sequence=number + 1, cell="cell2"), 5.0)
    assert reported(book)[0] == 10
    for cell, root, agent in (("cell1", ROOT, "agent1"), ("cell2", uid(2, "c"), "agent2")):
        assert book.state(cell, root) is not None
        assert book.down(cell, agent, 5.0) == ""


def test_reports_of_another_cells_hosts_are_ignored() -> None:
    honest, source = a_book(grace=1), spaced_source([the_facts(1)])
    honest.handle(a_heartbeat(1, load=0.5), 0.0)
    forged = a_heartbeat(1, sequence=2**60, cell="cell2", load=9.0, enabled=False)
    honest.handle(replace(forged, run="forged"), 1.0)
    honest.failed("cell2", ROOT, 1.0)
    facts = honest.snapshot(source, 1.0).facts(source.search(ASKED), 0)
    assert facts.state == a_state(1, load=0.5)
    assert (facts.failures, facts.down) == (0.0, "")
    for second in range(2, 60):  # nor does it keep its dead agent alive
        honest.handle(replace(forged, sequence=2**60 + second), float(second))
    assert honest.snapshot(source, 60.0).facts(source.search(ASKED), 0).down != ""


def test_a_failed_choice_is_subtracted_once_while_it_counts() -> None:
    """A claim may take longer to be refused than a choice counts, and its host be forgotten meanwhile."""
    book = a_book()
    book.chose("cell1", ROOT, 0.0)
    book.unchose("cell1", ROOT, 0.0)
    assert recent_builds(book, "cell1", ROOT, 0.5) == 0
    book.chose("cell1", ROOT, 1.0)
    assert recent_builds(book, "cell1", ROOT, 1.0 + RECENT) == 0
    book.unchose("cell1", ROOT, 1.0)
    assert recent_builds(book, "cell1", ROOT, 3.0) == 0
    for number in range(10, 3000):
        book.chose("cell1", uid(number, "c"), 3.0)
    book.listened(60.0)
    book.unchose("cell1", uid(10, "c"), 3.0)
    assert recent_builds(book, "cell1", uid(10, "c"), 61.0) == 0


def test_a_cell_that_is_registered_or_dropped_later_changes_it() -> None:
    source = RecordingSource([a_candidate(1, cell="c9")])
    hosts, (host,) = HostMap(source, ("c1",)), source.hosts()
    for there in (False, True, False):
        source.memory.index.cell_facts = {"c9": RegisteredCell(name="c9")} if there else {}
        hosts.update()
        assert bool(hosts.served[host.position]) is there
        assert hosts.why_no_agent(host) == (
            "" if there else "its cell 'c9' is not one of this scheduler's: c1"
        )
