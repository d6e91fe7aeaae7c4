"""Health of hosts from heartbeats and stored records: up, down or unknown."""

from random import Random

import pytest
from msgspec.structs import replace

from bus.host_health import DISABLED, DRAIN, FORCED_DOWN, HELD, HostHealth, standing
from bus.messages import HostReported
from scheduler_worker.core.rules.state import enabled, up
from scheduler_worker.hosts import HostBook
from tests.support.ranking_builders import a_hall, free, hosts_of, take
from tests.support.rule_builders import ASKED, ListedHosts, a_wish, the_facts
from tests.support.scheduler_builders import a_request, a_state

AGENT = "agent"
HOSTS = [replace(the_facts(number), agent=AGENT) for number in (1, 2, 3)]
MOMENT = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC


def a_report(*numbers: int, sequence: int, agent: str = AGENT, partial: bool = False) -> HostReported:
    states = tuple(a_state(number) for number in numbers)
    return HostReported(
        cell="cell1", agent=agent, sequence=sequence, period=10.0, partial=partial, hosts=states
    )


def reasons(book: HostBook, source: ListedHosts, now: float) -> list[str]:
    """Why each host is refused, empty where it is admitted; the arrays must agree with the sentences."""
    seen, search = book.level(source, now), source.search(ASKED)
    facts = [seen.facts(search, position) for position in search.positions.tolist()]
    whys = [book.why_down(fact.cell, fact.root, fact.agent, now) for fact in facts]
    assert [fact.down for fact in facts] == whys
    return [up().refuses(fact, a_wish()) or enabled().refuses(fact, a_wish()) or "" for fact in facts]


def unknown(book: HostBook, source: ListedHosts, now: float) -> list[bool]:
    seen = book.level(source, now).unknown
    return [seen is not None and seen.item(position) for position in source.search(ASKED).positions.tolist()]


def a_record(number: int, **fields: object) -> HostHealth:
    facts = HOSTS[number - 1]
    return HostHealth(root=facts.root, host=facts.host, cell=facts.cell, agent=facts.agent, **fields)  # type: ignore[arg-type]


def test_a_host_without_heartbeats_is_down_though_its_agent_reports_other_hosts() -> None:
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(HOSTS)
    book.handle(a_report(1, 2, 3, sequence=1), 0.0)
    for second in range(1, 31):
        book.handle(a_report(1, 3, sequence=second + 1), float(second))
    assert reasons(book, source, 30.0) == ["", "", ""]
    book.handle(a_report(1, 3, sequence=40), 31.5)
    why = "down: no heartbeat from it, though its agent agent reports other hosts, for 32 s"
    assert reasons(book, source, 31.5) == ["", why, ""]
    book.handle(a_report(2, sequence=41), 31.6)
    assert reasons(book, source, 31.6) == ["", "", ""]


def test_a_host_that_its_agent_never_reports_is_unknown_and_then_down() -> None:
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(HOSTS)
    book.level(source, 0.0)
    for second in range(31):
        book.handle(a_report(1, 3, sequence=second + 1), float(second))
    assert (reasons(book, source, 30.0), unknown(book, source, 30.0)) == (["", "", ""], [False, True, False])
    book.handle(a_report(1, 3, sequence=40), 31.5)
    why = "down: no heartbeat from it, though its agent agent reports other hosts"
    assert (reasons(book, source, 31.5), unknown(book, source, 31.5)) == (["", why, ""], [False] * 3)


def test_a_host_that_placement_has_from_now_on_may_take_as_long_for_its_first_heartbeat() -> None:
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(HOSTS[:1])
    for second in range(61):
        book.handle(a_report(1, sequence=second + 1), float(second))
    assert reasons(book, source, 60.0) == [""]
    source.listed = ListedHosts.of(HOSTS[:2]).listed
    source.layout += 1
    assert (reasons(book, source, 61.0), unknown(book, source, 61.0)) == (["", ""], [False, True])


def test_an_agent_whose_reports_are_partial_answers_for_all_of_its_hosts() -> None:
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(HOSTS)
    book.restore([a_record(3, availability="down", why="no heartbeat from its agent agent")])
    for second in range(61):
        hosts = (1,) if second == 0 else ()
        book.handle(a_report(*hosts, sequence=second + 1, partial=True), float(second))
    assert reasons(book, source, 60.0) == ["", "", ""]


# What was recorded before the scheduler started


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (
            a_record(2, availability="down", since=MOMENT, why="no heartbeat from its agent agent"),
            "down since 2023-11-14 22:13:20 UTC: no heartbeat from its agent agent",
        ),
        (a_record(2, availability="down", why="no heartbeat from it"), "down: no heartbeat from it"),
        (a_record(2, enabled=False, why_disabled="disk"), "disabled: disk"),
        (a_record(2, forced_down=True), "forced down by an operator"),
    ],
)
def test_a_stored_record_counts_until_the_next_heartbeat(record: HostHealth, why: str) -> None:
    book, source = HostBook(0.0), ListedHosts.of(HOSTS)
    book.restore([record])
    assert reasons(book, source, 0.0) == ["", why, ""]
    book.handle(a_report(1, 3, sequence=1), 1.0)
    assert reasons(book, source, 1.0) == ["", why, ""]
    book.handle(a_report(2, sequence=2), 2.0)
    assert reasons(book, source, 2.0) == ["", "", ""]


def test_a_host_that_was_down_before_an_outage_of_the_broker_is_down_after_it() -> None:
    """Neither does any other host come to be down by it."""
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(HOSTS)
    book.handle(a_report(1, 2, 3, sequence=1), 0.0)
    for second in range(1, 41):
        book.handle(a_report(1, 3, sequence=second + 1), float(second))
    for back in (1000.0, 2000.0):
        book.listened(back)
        found = reasons(book, source, back)
        assert (found[0], found[2]) == ("", "") and found[1].startswith("down: ")
        book.handle(a_report(1, 3, sequence=int(back)), back + 1)


def test_health_names_the_hosts_that_are_down_unknown_or_closed_by_their_agent() -> None:
    book, source = HostBook(0.0, grace=0.0), ListedHosts.of(HOSTS)
    closed = a_state(1, enabled=False, why_disabled="disk")
    book.level(source, 0.0)
    for second in range(32):
        hosts = (closed, a_state(2)) if second == 1 else (closed,)
        report = HostReported(cell="cell1", agent=AGENT, sequence=second + 1, hosts=hosts)
        book.handle(report, float(second))
    assert book.health(source, 31.0, MOMENT + 31.0) == {
        ("cell1", HOSTS[0].root): a_record(1, enabled=False, why_disabled="disk"),
        ("cell1", HOSTS[2].root): a_record(
            3, availability="down", why="no heartbeat from it, though its agent agent reports other hosts"
        ),
    }
    book.handle(HostReported(cell="cell1", agent=AGENT, sequence=99, hosts=(closed,)), 33.0)
    assert book.health(source, 33.0, MOMENT + 33.0)["cell1", HOSTS[1].root] == a_record(
        2,
        availability="down",
        since=MOMENT + 1.0,
        why="no heartbeat from it, though its agent agent reports other hosts",
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_arrays_agree_with_the_sentences(seed: int) -> None:
    chance = Random(seed)
    facts = [replace(the_facts(number), agent=f"agent{number % 4}") for number in range(1, 13)]
    book, source, now = HostBook(0.0, grace=chance.choice((0.0, 30.0))), ListedHosts.of(facts), 0.0
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
    return HostHealth(
        root=root, host="h", cell="cell1", agent=agent, availability=chance.choice(("up", "down")), why="x"
    )


# Which of them is chosen


def test_a_host_without_a_heartbeat_is_chosen_only_if_no_other_fits() -> None:
    hall = a_hall(free(1, 9000, vcpus=1), free(2, 5000, vcpus=1), states=[a_state(2)])
    ranking = hall.rank()
    picks = [take(ranking), take(ranking)]
    assert [hosts_of(pick)[0] for pick in picks] == ["host2", "host1"]
    assert [
        next(host.unknown for host in pick.record.hosts if host.host == hosts_of(pick)[0]) for pick in picks
    ] == [False, True]
    assert not any(pick.crossed for pick in picks)


def test_while_no_host_has_a_heartbeat_the_best_is_chosen() -> None:
    assert hosts_of(take(a_hall(free(1, 9000), free(2, 5000)).rank()))[0] == "host1"


def test_schedulers_prefer_known_hosts_of_others_to_own_unknown_hosts() -> None:
    hall = a_hall(*(free(number, 1024 * number, vcpus=1) for number in range(1, 31)))
    hall.hosts.level()
    hall.hosts.share(("a", "b"), "a")
    ours = hall.hosts.ours
    assert ours is not None
    mine = [host.host for host in hall.source.hosts() if ours[host.position]]
    theirs = [host.host for host in hall.source.hosts() if not ours[host.position]]
    known = {mine[0], theirs[0]}
    hall.handle(*(a_state(int(name.removeprefix("host"))) for name in known))
    ranking = hall.rank()
    order = [hosts_of(take(ranking))[0] for _ in range(30)]
    assert order[:2] == [mine[0], theirs[0]]


def test_a_forced_host_that_is_down_is_refused() -> None:
    hall = a_hall(free(1, 9000), free(2, 5000), states=[a_state(2)])
    hall.book.restore([replace(DOWN, agent="agent1")])
    ranking = hall.rank(a_request(forced_host="host1"))
    assert ranking.take() is None
    lacks = {miss.host: miss.lacks for miss in ranking.shortage().nearest}
    assert lacks["host1"] == "down since 2023-11-14 22:13:20 UTC: no heartbeat from it"


# The state that people see


DOWN = a_record(1, availability="down", since=MOMENT, why="no heartbeat from it")
DISK = f"{HELD}DISK"


@pytest.mark.parametrize(
    ("traits", "health", "kept", "says"),
    [
        ((), None, None, "up"),
        ((), DOWN, None, "down since 2023-11-14 22:13:20 UTC: no heartbeat from it"),
        ((), a_record(1, availability="unknown"), None, "unknown: no heartbeat so far"),
        ((), a_record(1, availability="unknown", why="no answer"), None, "unknown: no answer"),
        ((), a_record(1, enabled=False, why_disabled="disk"), None, "disabled by its agent: disk"),
        ((DISABLED,), None, (), "disabled by its agent"),
        ((DISABLED,), None, (DISABLED,), "disabled by an operator"),
        ((DISABLED, DISK), None, (DISABLED, DISK), "disabled by an operator: disk"),
        ((DISABLED, DISK), DOWN, None, "down since 2023-11-14 22:13:20 UTC: no heartbeat from it,"
         " disabled by an operator: disk"),
        ((DISABLED, DRAIN), None, (DISABLED, DRAIN), "draining: disabled by an operator: drain"),
        ((FORCED_DOWN,), None, None, "down: forced down by an operator"),
        ((), a_record(1, forced_down=True), None, "down: forced down by an operator"),
        ((DISABLED,), a_record(1, enabled=False, why_disabled="fan"), (DISABLED,),
         "disabled by an operator, disabled by its agent: fan"),
    ],
)  # fmt: skip
def test_the_state_of_a_host_follows_from_its_traits_and_its_health(
    traits: tuple[str, ...], health: HostHealth | None, kept: tuple[str, ...] | None, says: str
) -> None:
    assert str(standing(traits, health, kept)) == says
