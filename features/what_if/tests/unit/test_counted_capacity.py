"""The capacity that a what-if question counts."""

from time import process_time

import pytest

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.requests import Flavor
from features.what_if import questions as what_if
from features.what_if.messages import WhatIf, WhatIfAnswered
from features.what_if.questions import WhatIfs
from placement_worker.core.trees import Tree
from scheduler_worker.placing import suggestions
from scheduler_worker.placing.scheduler import Scheduler
from tests.support.index_source import source_of
from tests.support.provider_trees import state, tree
from tests.support.scheduler_builders import FakePlacement, a_request
from tests.support.schedulers import scheduler_of

ON_A_CELL = Flavor(name="f", extra_specs={"resources1:VCPU": "1", "resources1:MEMORY_MB": "1"})


def a_host_of_cells(number: int, cells: int, vcpus: int) -> Tree:
    first = 10_000 * number
    children = [
        state(first + index, first, {"VCPU": vcpus, "MEMORY_MB": 10_000}) for index in range(1, cells + 1)
    ]
    return tree(state(first, None, {}), *children)


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


async def test_remedies_are_searched_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "REQUEST_SECONDS", 0.1)
    specs = {f"resources{index}:VCPU": "2" for index in range(60)} | {"group_policy": "isolate"}
    specs |= {f"same_subtree{index}": f"{index},{index + 1}" for index in range(59)}
    scheduler = a_scheduler(source_of([a_host_of_cells(1, cells=1000, vcpus=100)]))
    began = process_time()
    await scheduler.place_many([a_request(flavor=Flavor(name="f", extra_specs=specs))])
    assert process_time() - began < 4.0
