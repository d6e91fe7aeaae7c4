"""Answers of what-if equal the results of real boots, and leave nothing reserved."""

import pytest
from msgspec.structs import replace

from bus.decisions import UNREADABLE
from bus.messages import BuildRequested, BuildUnplaceable
from bus.requests import Flavor
from features.what_if import questions as what_if
from features.what_if.messages import WhatIf
from features.what_if.questions import WhatIfs
from scheduler_worker.testing import Scheduler
from tests.support.ids import uid
from tests.support.refused_worlds import HOSTS, of
from tests.support.rule_builders import recent_builds
from tests.support.scheduler_builders import SMALL, FakePlacement, a_request
from tests.support.schedulers import scheduler_of
from tests.support.virtual_time import TurnedClock


def a_scheduler(placement: FakePlacement) -> Scheduler:
    return scheduler_of(placement, clock=TurnedClock().clock)


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
    placement = FakePlacement(*HOSTS)
    scheduler = a_scheduler(placement)
    request = a_request(instances=instances, flavor=flavor)
    answer = await WhatIfs(scheduler).answer(WhatIf(request=request, room=True))
    assert answer.fits is fits
    assert sum(there.instances for there in answer.placed) == (instances if fits else 0)
    assert sum(left.instances for left in answer.room) == room
    assert fits or answer.decision.code == ("room" if room else "class")
    assert not placement.source.packing.taken and not placement.held
    assert all(recent_builds(scheduler.book, "cell1", uid(number, "c"), 0.0) == 0 for number in (1, 2, 3))
    really = await scheduler.place_many([replace(request, alternates=0)])
    (verdict,) = really
    assert isinstance(verdict, list | tuple)
    assert all(isinstance(one, BuildUnplaceable) for one in verdict) is not fits
    if fits:
        assert answer.best[0].scores["total"] == max(host.scores["total"] for host in answer.best)


async def test_counting_capacity_in_slices_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = a_scheduler(FakePlacement(*HOSTS))
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
    answer = await WhatIfs(a_scheduler(FakePlacement(*HOSTS))).answer(WhatIf(request=request_))
    assert not answer.fits and answer.refusal.startswith(refusal)
    assert answer.decision.code == UNREADABLE
