"""The capacity that a what-if question counts."""

import pytest

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.requests import Flavor
from features.what_if import questions as what_if
from features.what_if.messages import WhatIf, WhatIfAnswered
from features.what_if.questions import WhatIfs
from placement_worker.extension import Tree
from scheduler_worker.testing import Scheduler
from tests.support.index_source import source_of
from tests.support.provider_trees import a_host_of_cells
from tests.support.scheduler_builders import FakePlacement, a_request
from tests.support.schedulers import scheduler_of

ON_A_CELL = Flavor(name="f", extra_specs={"resources1:VCPU": "1", "resources1:MEMORY_MB": "1"})


def a_scheduler(source: CandidateSource, clock: Clock | None = None) -> Scheduler:
    return scheduler_of(FakePlacement(), source=source, clock=clock or Clock())


async def room(*hosts: Tree) -> WhatIfAnswered:
    scheduler = a_scheduler(source_of(hosts))
    return await WhatIfs(scheduler).answer(WhatIf(request=a_request(flavor=ON_A_CELL), room=True))


@pytest.mark.parametrize("vcpus", [3, 5])
@pytest.mark.parametrize("slice_", [-1.0, 0.0001, 10.0])
async def test_the_count_does_not_depend_on_its_slices(
    slice_: float, vcpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "SLICE", slice_)
    answer = await room(*(a_host_of_cells(number, cells=4, vcpus=vcpus) for number in range(1, 6)))
    (found,) = answer.room
    assert (found.hosts, found.instances, answer.cut) == (5, 5 * 4 * vcpus - 1, "")


async def test_capacity_is_counted_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "SLICE", -1.0)  # one host, then other work
    monkeypatch.setattr(what_if, "LONGEST", 0.0)
    answer = await room(*(a_host_of_cells(number, cells=4, vcpus=3) for number in range(1, 6)))
    assert answer.cut.startswith("counting stopped after 0 s")
    assert sum(left.instances for left in answer.room) < 5 * 4 * 3 - 1


async def test_a_what_if_ends_at_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "PATIENCE", 0.05)
    monkeypatch.setattr(what_if, "LONGEST", 60.0)
    answer = await room(a_host_of_cells(1, cells=1000, vcpus=100))
    assert (answer.fits, answer.refusal) == (False, "there was no answer within 0.05 s")
