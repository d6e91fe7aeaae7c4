"""What-if questions in the control room: the query and the shown answer."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from bus import topics
from bus.decisions import Decision, Removal
from bus.queries import CapacityLeft, PlacedThere, WhatIf, WhatIfAnswered
from bus.worker import Worker, answers
from tests.support.ids import uid
from tests.support.visited_room import VisitedRoom, a_visited_room

THERE = PlacedThere(root=uid(2, "a"), host="<h2>", cell="c1", zone="z1", instances=3)
FITS = WhatIfAnswered(
    fits=True, placed=(THERE,), room=(CapacityLeft(cell="c1", zone="z1", hosts=2, instances=1200),)
)
FULL = WhatIfAnswered(
    fits=False,
    decision=Decision(
        code="no_room",
        considered=7,
        removals=(Removal(constraint="VCPU:99", removed=7, left=0),),
        helps=("2 hosts would fit with 8 VCPU instead of 99",),
    ),
)


@dataclass
class TellingScheduler:
    says: WhatIfAnswered = FITS
    asked: list[WhatIf] = field(default_factory=list)

    async def answer(self, question: WhatIf) -> WhatIfAnswered:
        self.asked.append(question)
        return self.says


@pytest.fixture
def scheduler() -> TellingScheduler:
    return TellingScheduler()


@pytest.fixture
async def room(scheduler: TellingScheduler) -> AsyncIterator[VisitedRoom]:
    worker = Worker("scheduler", answers=[answers(topics.WHAT_IF, scheduler.answer)])
    async with a_visited_room(worker, answered=("what_if",)) as visited:
        yield visited


async def test_an_empty_form_sends_no_query(room: VisitedRoom, scheduler: TellingScheduler) -> None:
    assert "Enter what an instance needs" in await room.page("/what-if")
    assert not scheduler.asked


async def test_the_parameters_of_an_address_become_the_request_of_a_boot(
    room: VisitedRoom, scheduler: TellingScheduler
) -> None:
    page = await room.page(
        "/what-if?vcpus=4&memory_mb=4096&count=3&zone=z1&traits=CUSTOM_A,!CUSTOM_B&resources=VGPU:1&avoid=h7"
    )
    (asked,) = scheduler.asked
    request = asked.request
    assert (request.flavor.vcpus, request.flavor.memory_mb, len(request.instances)) == (4, 4096, 3)
    assert (request.zone, request.ignore_hosts, asked.room) == ("z1", ("h7",), True)
    specs = {"trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden", "resources:VGPU": "1"}
    assert request.flavor.extra_specs == specs
    assert "It fits: 3 instances on 1 host." in page and "&lt;h2&gt;" in page and "1,200" in page
    assert 'value="4096"' in page and "CUSTOM_A,!CUSTOM_B" in page  # it can be changed and asked again


async def test_a_request_that_does_not_fit_shows_the_reason_and_remedies(
    room: VisitedRoom, scheduler: TellingScheduler
) -> None:
    scheduler.says = FULL
    page = await room.page("/what-if?vcpus=99")
    assert "It does not fit" in page and "(no_room)" in page
    assert page.count("2 hosts would fit with 8 VCPU instead of 99") == 1
    assert "VCPU:99" in page and "removed 7" in page
    scheduler.says = WhatIfAnswered(fits=False, refusal="wanted_host: there is no host")
    assert "Invalid request: wanted_host" in await room.page("/what-if?vcpus=1&host=nobody")


async def test_a_scheduler_that_does_not_answer_is_named() -> None:
    async with a_visited_room() as alone:
        assert "The scheduler does not answer: no consumer" in await alone.page("/what-if?vcpus=1")
