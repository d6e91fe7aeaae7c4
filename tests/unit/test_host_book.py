"""Which hosts are up, what they last said, and what is not their fault."""

import pytest

from bus.messages import HostReported
from scheduler_worker.hosts import RECENT, HostBook
from tests.fleet import a_report, a_state, an_id

ROOT = an_id(1, "c")


def a_book(**fields: float) -> HostBook:
    return HostBook(0.0, **fields)


def test_a_scheduler_that_never_hears_anybody_gives_up_after_one_grace() -> None:
    book = a_book(grace=30)
    assert [bool(book.down("agent1", now)) for now in (0, 29, 30, 31, 59, 90)] == [False, False, *[True] * 4]
    book.opened(100.0)
    assert not book.down("agent1", 129.0)


def test_nobody_is_down_before_he_could_have_been_heard() -> None:
    book = a_book(grace=30)
    book.hear(a_report(2), 29.0)
    assert book.down("agent1", 29.9) == ""
    assert book.down("agent1", 30.0) == "down: nothing was ever heard of its agent agent1"


@pytest.mark.parametrize(
    ("period", "after", "up"),
    [(10, 30, True), (10, 31, False), (1, 10, True), (1, 11, False), (60, 180, True), (60, 181, False)],
)
def test_a_host_is_up_for_three_periods_and_at_least_ten_seconds(
    period: float, after: float, up: bool
) -> None:
    book = a_book(grace=1)
    book.hear(HostReported(cell="c", agent="agent1", sequence=1, period=period, hosts=()), 100.0)
    for second in range(101, 101 + int(after)):
        book.hear(a_report(2, sequence=second), second)
    why = book.down("agent1", 100.0 + after)
    assert (why == "") == up
    if not up:
        assert why == f"down: nothing heard of its agent agent1 for {after:.0f} s"


def test_the_last_report_counts_and_a_late_or_repeated_one_changes_nothing() -> None:
    book = a_book()
    book.hear(a_report(sequence=5, load=0.5, zone="z"), 1.0)
    book.hear(a_report(sequence=4, load=0.4), 2.0)
    book.hear(a_report(sequence=5, load=0.9), 3.0)
    state = book.state(ROOT)
    assert state is not None
    assert state.load == 0.5
    book.hear(a_report(sequence=6, load=0.6, cell="cell2"), 4.0)
    known = book.find(ROOT)
    assert known is not None
    assert (known.state.load, known.agent, known.cell) == (0.6, "agent1", "cell2")
    assert book.cells == {"cell1", "cell2"}
    assert book.zones == {"z"}


def test_a_stale_report_is_no_sign_of_life() -> None:
    book = a_book(grace=1)
    book.hear(a_report(sequence=5), 0.0)
    book.hear(a_report(sequence=4), 20.0)
    book.hear(a_report(2, sequence=1), 31.0)
    assert book.down("agent1", 33.0) != ""


def test_reports_of_other_hosts_of_the_agent_may_overtake_each_other() -> None:
    book = a_book()
    later = HostReported(cell="c", agent="ironic", sequence=2, hosts=(a_state(2, load=0.2),))
    sooner = HostReported(cell="c", agent="ironic", sequence=1, hosts=(a_state(1, load=0.1),))
    book.hear(later, 1.0)
    book.hear(sooner, 2.0)
    assert book.state(an_id(1, "c")) is not None
    assert book.state(an_id(2, "c")) is not None


def test_an_agent_back_from_the_dead_may_count_from_the_beginning() -> None:
    book = a_book(grace=1)
    book.hear(a_report(sequence=500, load=0.5), 0.0)
    book.hear(a_report(sequence=1, load=0.1), 31.0)
    state = book.state(ROOT)
    assert state is not None
    assert state.load == 0.1
    assert book.down("agent1", 40.0) == ""


def test_a_host_that_moves_to_another_agent_is_the_new_one_s() -> None:
    book = a_book()
    book.hear(HostReported(cell="c", agent="old", sequence=900, hosts=(a_state(),)), 0.0)
    book.hear(HostReported(cell="c", agent="new", sequence=1, hosts=(a_state(),)), 1.0)
    known = book.find(ROOT)
    assert known is not None
    assert known.agent == "new"


def test_when_nobody_at_all_was_heard_it_may_be_our_own_ears() -> None:
    """A broker away for two minutes must not empty the cloud; an agent that stays silent is down later."""
    book = a_book(grace=30)
    for number in (1, 2):
        book.hear(a_report(number), 0.0)
    assert book.down("agent1", 120.0) == ""
    assert book.down("agent1", 149.0) == ""
    assert book.down("agent1", 151.0) != ""
    book.hear(a_report(2, sequence=2), 200.0)
    assert book.down("agent1", 229.0) == ""
    book.hear(a_report(2, sequence=3), 225.0)
    assert book.down("agent1", 231.0) != ""
    assert book.down("agent2", 231.0) == ""


def test_own_choices_count_as_builds_for_a_moment() -> None:
    book = a_book()
    for now in (0.0, 0.5):
        book.chose(ROOT, now)
    assert book.recent(ROOT, 0.6) == 2
    assert book.recent(ROOT, RECENT) == 1
    assert book.recent(ROOT, 0.5 + RECENT) == 0
    assert book.recent(an_id(2, "c"), 0.6) == 0
