"""Changes that would make a request fit: one requirement relaxed at a time, no reservation left behind."""

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from bus.messages import BuildRequested, BuildUnplaceable
from bus.queries import WhatIf
from bus.requests import Flavor, Hints
from bus.vocabulary import Resources
from scheduler_worker import ChoicePolicy, placing, what_if
from scheduler_worker.core import helping, relaxing
from scheduler_worker.core.choosing import Choosing
from scheduler_worker.core.helping import MOST_PAIRED, MOST_TRIED, Tally, helps
from scheduler_worker.core.ranking import Ranking
from scheduler_worker.core.rule import Alternative
from scheduler_worker.placing import Scheduler
from scheduler_worker.what_if import WhatIfs
from tests.support.ids import uid
from tests.support.ranking_builders import a_hall
from tests.support.scheduler_builders import (
    SMALL,
    FakePlacement,
    TurnedClock,
    a_candidate,
    a_heartbeat,
    a_request,
    a_state,
)
from tests.support.schedulers import scheduler_of

FREE: Resources = {"VCPU": 8, "MEMORY_MB": 8192, "DISK_GB": 80}
LITTLE: Resources = {"VCPU": 8, "MEMORY_MB": 2048, "DISK_GB": 80}
HOSTS = (
    a_candidate(1, free=FREE, zone="z1", cell="cell1", traits=("CUSTOM_A",)),
    a_candidate(2, free=FREE, zone="z1", cell="cell2"),
    a_candidate(3, free=LITTLE, zone="z2", cell="cell2"),
)
STATES = (a_state(1), a_state(2, enabled=False), a_state(3))


def of(**fields: int) -> Flavor:
    return replace(Flavor(name="f", vcpus=1, memory_mb=1024, disk_gb=10), **fields)


HELPS: dict[str, tuple[BuildRequested, tuple[str, ...]]] = {
    "a class: the most that anybody has": (
        a_request(flavor=of(memory_mb=16384)),
        ("1 host would fit with 8192 MEMORY_MB instead of 16384",),
    ),
    "two classes: neither by itself": (
        a_request(flavor=of(memory_mb=16384, vcpus=99)),
        ("with 8 VCPU instead of 99 and with 8192 MEMORY_MB instead of 16384: 1 host",),
    ),
    "a class and a zone": (
        a_request(flavor=of(memory_mb=16384), zone="z9"),
        ("without zone z9 and with 8192 MEMORY_MB instead of 16384: 1 host",),
    ),
    "a zone and a cell": (
        a_request(zone="z9", cell="c9"),
        ("without zone z9 and without cell c9: 2 hosts",),
    ),
    "a zone, and a class or a host that is disabled": (
        a_request(flavor=of(memory_mb=4096), zone="z9", cell="cell2"),
        (
            "without zone z9 and without cell cell2: 1 host",
            "without zone z9 and with 2048 MEMORY_MB instead of 4096: 1 host",
            "without zone z9 and with hosts that are disabled: 1 host",
        ),
    ),
    "a class and a host that is disabled": (
        a_request(flavor=of(memory_mb=16384), zone="z1", cell="cell2"),
        ("with hosts that are disabled and with 8192 MEMORY_MB instead of 16384: 1 host",),
    ),
    "three things at once": (a_request(flavor=of(memory_mb=16384, vcpus=99), zone="z9"), ()),
    "a zone": (a_request(flavor=of(memory_mb=4096), zone="z2"), (
        "without zone z2: 1 host",
        "1 host would fit with 2048 MEMORY_MB instead of 4096",
    )),
    "a cell, or a host that is disabled": (
        a_request(flavor=of(memory_mb=4096), cell="cell2"),
        (
            "1 host would fit with 2048 MEMORY_MB instead of 4096",
            "without cell cell2: 1 host",
            "1 host is disabled",
        ),
    ),
    "hosts that are ignored": (
        a_request(flavor=of(memory_mb=4096), ignore_hosts=("host1",)),
        (
            "1 host would fit with 2048 MEMORY_MB instead of 4096",
            "without ignore_hosts: 1 host",
            "1 host is disabled",
        ),
    ),
    "a hint": (
        a_request(hints=Hints(query='["=", "$host", "none"]')),
        ("without the hint query: 2 hosts",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "said"), HELPS.values(), ids=HELPS)
def test_remedies_of_refused_requests(request_: BuildRequested, said: tuple[str, ...]) -> None:
    policy = ChoicePolicy.from_names(("up", "enabled", "zone", "json"))
    hall = a_hall(*HOSTS, policy=policy)
    for state, host in zip(STATES, HOSTS, strict=True):
        hall.handle(state, cell=host.cell)
    found = helps(hall.alternative(request_), hall.choosing(), "s")
    assert set(said) <= set(found), found
    assert bool(said) == bool(found), found
    assert not hall.source.promised  # type: ignore[attr-defined]


def test_looking_for_two_things_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hall, ranked, rank = a_hall(*HOSTS), list[str](), Choosing.rank

    def counting(choosing: Choosing, alternative: Alternative, seed: str) -> Ranking:
        ranked.append(seed)
        return rank(choosing, alternative, seed)

    monkeypatch.setattr(Choosing, "rank", counting)
    specs = {f"resources:CUSTOM_{name}": "5" for name in "BCDEFGHIJK"}
    lacking = a_request(flavor=replace(of(), extra_specs=specs))
    assert helps(hall.alternative(lacking), hall.choosing(), "s") == ()
    assert MOST_PAIRED < len(ranked) <= MOST_TRIED + MOST_PAIRED


def a_scheduler(placement: FakePlacement) -> Scheduler:
    return scheduler_of(placement, clock=TurnedClock().clock)


async def test_an_unplaceable_request_contains_remedies() -> None:
    scheduler = a_scheduler(FakePlacement.of(*HOSTS))
    request = a_request(flavor=of(memory_mb=16384))
    (verdict,) = await scheduler.place_many([request])
    (said,) = verdict  # type: ignore[misc]
    assert isinstance(said, BuildUnplaceable)
    assert said.decision.helps == ("2 hosts would fit with 8192 MEMORY_MB instead of 16384",)
    assert said.decision.code == "class"


async def test_a_placed_request_searches_no_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[str]()

    def helps(
        alternative: Alternative, choosing: Choosing, seed: str, late: Callable[[], bool], *, needed: int
    ) -> tuple[str, ...]:
        looked.append(seed)
        return ()

    monkeypatch.setattr(placing, "helps", helps)
    scheduler = a_scheduler(FakePlacement.of(*HOSTS))
    await scheduler.place_many([a_request(1), a_request(2)])
    assert not looked
    big = of(memory_mb=16384)
    await scheduler.place_many([a_request(3, flavor=big), a_request(4, flavor=big)])
    assert looked == [uid(3, "a")]


# What if


WHAT_IF = [
    (1, SMALL, True, 17),
    (5, SMALL, True, 13),
    (18, SMALL, True, 0),
    (19, SMALL, False, 18),
    (1, of(memory_mb=4096), True, 3),
    (1, of(memory_mb=16384), False, 0),
]


@pytest.mark.parametrize(("instances", "flavor", "fits", "room"), WHAT_IF)
async def test_what_if_answers_equal_boots_and_leave_no_reservation(
    instances: int, flavor: Flavor, fits: bool, room: int
) -> None:
    placement = FakePlacement.of(*HOSTS)
    scheduler = a_scheduler(placement)
    request = a_request(instances=instances, flavor=flavor)
    answer = await WhatIfs(scheduler).answer(WhatIf(request=request, room=True))
    assert answer.fits is fits
    assert sum(there.instances for there in answer.placed) == (instances if fits else 0)
    assert sum(left.instances for left in answer.room) == room
    assert not placement.source.promised and not placement.held
    assert all(scheduler.book.recent("cell1", uid(number, "c"), 0.0) == 0 for number in (1, 2, 3))
    really = await scheduler.place_many([replace(request, alternates=0)])
    (verdict,) = really
    assert isinstance(verdict, list | tuple)
    assert all(isinstance(one, BuildUnplaceable) for one in verdict) is not fits
    if fits:
        assert answer.best[0].scores["total"] == max(host.scores["total"] for host in answer.best)


async def test_room_counted_a_host_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = a_scheduler(FakePlacement.of(*HOSTS))
    question = WhatIf(request=a_request(instances=2), room=True)
    at_once = (await WhatIfs(scheduler).answer(question)).room
    monkeypatch.setattr(what_if, "SLICE", -1.0)
    assert (await WhatIfs(scheduler).answer(question)).room == at_once
    assert sum(left.instances for left in at_once) == 16


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (a_request(wanted_host="nobody"), "wanted_host: there is no host 'nobody'"),
        (a_request(flavor=Flavor(name="none")), "flavor: it asks for no resources at all"),
    ],
)
async def test_an_unreadable_what_if_is_refused(request_: BuildRequested, refusal: str) -> None:
    answer = await WhatIfs(a_scheduler(FakePlacement.of(*HOSTS))).answer(WhatIf(request=request_))
    assert not answer.fits and answer.refusal.startswith(refusal)


async def test_builds_that_rules_count_are_supposed_as_well() -> None:
    """Two hosts that may build two at a time: five do not fit, four do."""
    placement = FakePlacement.of(*HOSTS[:2])
    scheduler = scheduler_of(
        placement, policy=ChoicePolicy.from_names(("io_ops",), max_builds=2), clock=TurnedClock().clock
    )
    for number in (1, 2):
        await scheduler.handle(a_heartbeat(number, cell=f"cell{number}"))
    fits = [
        (await WhatIfs(scheduler).answer(WhatIf(request=a_request(instances=count)))).fits for count in (4, 5)
    ]
    assert fits == [True, False]


async def test_no_more_pairs_are_made_once_the_searches_are_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flavor of 190 groups has 18,000 pairs."""
    made: list[relaxing.Lessened] = []

    def lessened(alternative: Alternative) -> Iterator[relaxing.Lessened]:
        for lessened in relaxing.lessened(alternative):
            made.append(lessened)
            yield lessened

    monkeypatch.setattr(helping, "lessened", lessened)
    hall = a_hall(*HOSTS)
    groups = Flavor(name="groups", extra_specs={f"resources{index}:CUSTOM_A": "1" for index in range(190)})
    list(helping.paired(hall.alternative(a_request(flavor=groups)), hall.choosing(), Tally("seed", 48)))
    assert 0 < len(made) < 1000
