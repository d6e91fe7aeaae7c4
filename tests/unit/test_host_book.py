"""Health of hosts, last reports, and failures not caused by the host."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from bus.messages import HostReported
from scheduler_worker import hosts
from scheduler_worker.build_counts import RECENT
from scheduler_worker.core.rules.state import few_failures
from scheduler_worker.hosts import HostBook
from tests.support.ids import uid
from tests.support.rule_builders import ASKED, ListedHosts, a_wish, the_facts
from tests.support.scheduler_builders import a_heartbeat, a_state

ROOT = uid(1, "c")


def a_book(**fields: float) -> HostBook:
    return HostBook(0.0, **fields)


def listened(book: HostBook, start: float, end: float) -> float:
    """Something came in every second: requests, or answers."""
    for second in range(int(start), int(end) + 1):
        book.listened(float(second))
    return end


def test_a_scheduler_that_never_hears_anybody_gives_up_after_one_grace() -> None:
    book = a_book(grace=30)
    assert book.down("cell1", "agent1", listened(book, 0, 29)) == ""
    assert book.down("cell1", "agent1", listened(book, 30, 30)) == "down: no heartbeat from its agent agent1"
    book.opened(100.0)
    assert book.down("cell1", "agent1", listened(book, 100, 129)) == ""
    assert book.down("cell1", "agent1", listened(book, 129, 131)) != ""


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


def test_the_last_report_counts_and_a_late_or_repeated_one_changes_nothing() -> None:
    book = a_book()
    book.handle(a_heartbeat(sequence=5, load=0.5, zone="z"), 1.0)
    book.handle(a_heartbeat(sequence=4, load=0.4), 2.0)
    book.handle(a_heartbeat(sequence=5, load=0.9), 3.0)
    state = book.state("cell1", ROOT)
    assert state is not None
    assert state.load == 0.5
    book.handle(a_heartbeat(sequence=6, load=0.6), 4.0)
    state = book.state("cell1", ROOT)
    assert state is not None
    assert state.load == 0.6
    assert book.cells == {"cell1"}


def test_a_stale_report_is_no_sign_of_life() -> None:
    book = a_book(grace=1)
    book.handle(a_heartbeat(sequence=5), 0.0)
    listened(book, 1, 20)
    book.handle(a_heartbeat(sequence=4), 20.0)
    assert book.down("cell1", "agent1", listened(book, 21, 33)) != ""


def test_reports_of_other_hosts_of_the_agent_may_overtake_each_other() -> None:
    book = a_book()
    later = HostReported(cell="cell1", agent="ironic", sequence=2, hosts=(a_state(2, load=0.2),))
    sooner = HostReported(cell="cell1", agent="ironic", sequence=1, hosts=(a_state(1, load=0.1),))
    book.handle(later, 1.0)
    book.handle(sooner, 2.0)
    assert book.state("cell1", uid(1, "c")) is not None
    assert book.state("cell1", uid(2, "c")) is not None


def test_an_agent_back_from_the_dead_may_count_from_the_beginning() -> None:
    book = a_book(grace=1)
    book.handle(a_heartbeat(sequence=500, load=0.5), 0.0)
    book.handle(a_heartbeat(sequence=1, load=0.1), listened(book, 1, 31))
    state = book.state("cell1", ROOT)
    assert state is not None
    assert state.load == 0.1
    assert book.down("cell1", "agent1", listened(book, 31, 40)) == ""


def test_a_new_run_counts_from_the_beginning_at_once() -> None:
    """The clock of the first was a year ahead."""
    book = a_book()
    book.handle(replace(a_heartbeat(sequence=2**60, load=0.5), run="one"), 0.0)
    book.handle(replace(a_heartbeat(sequence=7, load=0.1), run="two"), 1.0)
    book.handle(replace(a_heartbeat(sequence=6, load=0.9), run="two"), 2.0)
    state = book.state("cell1", ROOT)
    assert state is not None
    assert state.load == 0.1


def test_a_host_that_moves_to_another_agent_is_the_new_one_s() -> None:
    book = a_book()
    book.handle(HostReported(cell="cell1", agent="old", sequence=900, hosts=(a_state(),)), 0.0)
    book.handle(HostReported(cell="cell1", agent="new", sequence=1, hosts=(a_state(load=0.7),)), 1.0)
    state = book.state("cell1", ROOT)
    assert state is not None
    assert (state.load, book.cells) == (0.7, {"cell1"})


# Our own ears


@pytest.mark.parametrize("away", [19.0, 120.0, 3600.0])
@pytest.mark.parametrize("period", [1.0, 2.0, 10.0, 60.0])
def test_silence_of_all_agents_is_not_held_against_them(period: float, away: float) -> None:
    book, agents = a_book(grace=1), [f"agent{number}" for number in range(5)]

    def reports(sequence: int, now: float, some: list[str] = agents) -> None:
        for agent in some:
            book.handle(
                HostReported(cell="cell1", agent=agent, sequence=sequence, period=period, hosts=()), now
            )

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


def test_an_agent_that_stays_silent_while_others_report_again_is_down() -> None:
    book = a_book(grace=1)
    for number in (1, 2):
        book.handle(a_heartbeat(number), 0.0)
    for index in range(2, 8):
        book.handle(a_heartbeat(2, sequence=index), 100.0 + 10 * index)
    assert book.down("cell1", "agent1", 170.0) == "down: no heartbeat from its agent agent1 for 170 s"
    assert book.down("cell1", "agent2", 170.0) == ""


def test_a_single_silent_agent_is_down_if_requests_still_arrive() -> None:
    book = a_book(grace=1)
    book.handle(a_heartbeat(), 0.0)
    assert book.down("cell1", "agent1", listened(book, 1, 30)) == ""
    assert book.down("cell1", "agent1", listened(book, 30, 31)) != ""


def test_a_clock_that_does_not_move_or_moves_back_does_no_harm() -> None:
    book = a_book(grace=1)
    book.handle(a_heartbeat(), 100.0)
    book.listened(50.0)
    assert book.down("cell1", "agent1", listened(book, 50, 60)) == ""


# What is forgotten


def test_hosts_without_reports_for_very_long_are_forgotten() -> None:
    book = a_book(grace=1)
    for number in range(1000):
        book.handle(a_heartbeat(number, cell=f"forged{number}", zone=f"z{number}"), 0.0)
    assert len(book) == len(book.cells) == 1000
    for second in range(5, 700, 5):
        book.handle(a_heartbeat(1, sequence=second), float(second))
    assert (len(book), book.cells) == (1, {"cell1"})
    assert book.down("cell1", "agent2", 700.0) == "down: no heartbeat from its agent agent2"


def test_no_more_hosts_are_remembered_than_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "MOST_HOSTS", 10)
    book = a_book()
    for number in range(100):
        book.handle(a_heartbeat(1000 + number, sequence=1), float(number))
        book.handle(a_heartbeat(1, sequence=number + 1, load=1.0), float(number))
    assert len(book) == 10
    assert book.state("cell1", ROOT) is not None
    assert book.down("cell1", "agent1", 100.0) == ""


def test_a_cell_that_floods_the_scheduler_does_not_evict_hosts_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "MOST_HOSTS", 10)
    book = a_book(grace=1)
    book.handle(a_heartbeat(1), 0.0)
    for number in range(100):
        book.handle(a_heartbeat(1000 + number, cell="cell2"), 5.0)
    assert len(book) == 10
    assert book.state("cell1", ROOT) is not None
    assert book.down("cell1", "agent1", 5.0) == ""


def test_no_cell_speaks_for_another_s_host_or_agent() -> None:
    honest, source = a_book(grace=1), ListedHosts.of([the_facts(1)])
    honest.handle(a_heartbeat(1, load=0.5), 0.0)
    forged = a_heartbeat(1, sequence=2**60, cell="cell2", load=9.0, enabled=False)
    honest.handle(replace(forged, run="forged"), 1.0)
    honest.failed("cell2", ROOT, 1.0)
    facts = honest.level(source, 1.0).facts(source.search(ASKED), 0)
    assert facts.state == a_state(1, load=0.5)
    assert (facts.failures, facts.down) == (0.0, "")
    for second in range(2, 60):  # nor does it keep its dead agent alive
        honest.handle(replace(forged, sequence=2**60 + second), float(second))
    assert honest.level(source, 60.0).facts(source.search(ASKED), 0).down != ""


def test_own_choices_count_as_builds_for_a_moment() -> None:
    book = a_book()
    for now in (0.0, 0.5):
        book.chose("cell1", ROOT, now)
    assert book.recent("cell1", ROOT, 0.6) == 2
    assert book.recent("cell1", ROOT, RECENT) == 1
    assert book.recent("cell1", ROOT, 0.5 + RECENT) == 0
    assert book.recent("cell1", uid(2, "c"), 0.6) == 0


def test_a_choice_that_comes_to_nothing_is_taken_back_once_and_only_while_it_counts() -> None:
    """A claim may take longer to be refused than a choice counts, and its host be forgotten meanwhile."""
    book = a_book()
    book.chose("cell1", ROOT, 0.0)
    book.unchose("cell1", ROOT, 0.0)
    assert book.recent("cell1", ROOT, 0.5) == 0
    book.chose("cell1", ROOT, 1.0)
    assert book.recent("cell1", ROOT, 1.0 + RECENT) == 0
    book.unchose("cell1", ROOT, 1.0)
    assert book.recent("cell1", ROOT, 3.0) == 0
    for number in range(10, 3000):
        book.chose("cell1", uid(number, "c"), 3.0)
    book.listened(60.0)
    book.unchose("cell1", uid(10, "c"), 3.0)
    assert book.recent("cell1", uid(10, "c"), 61.0) == 0


def test_a_host_that_fails_everything_is_left_alone_after_three_and_tried_again_every_few_minutes() -> None:
    book, root, now, refused = HostBook(0.0, halved_after=300.0), uid(1, "c"), 0.0, few_failures().refuses
    tried: list[float] = []
    while now < 1200.0:
        if refused(the_facts(1, failures=book.failures("cell1", root, now)), a_wish()) is None:
            tried.append(now)
            book.failed("cell1", root, now)
        now += 1.0
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses[:2] == [1.0, 1.0]
    assert 70 < pauses[2] < 90
    assert all(130 < pause < 160 for pause in pauses[3:]) and len(pauses) > 8
    book.built("cell1", root)
    assert refused(the_facts(1, failures=book.failures("cell1", root, now)), a_wish()) is None
