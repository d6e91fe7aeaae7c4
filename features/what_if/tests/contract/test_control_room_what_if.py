"""The page of what-if questions in the control room."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus.decisions import UNREADABLE, Decision, Removal
from bus.messages import BuildRequested
from bus.queries import BuildsFound, DecisionFound
from bus.resources import FindProviders, ProvidersFound
from bus.topics import PROVIDERS
from bus.worker import Worker, answers
from features.what_if.messages import (
    WHAT_IF,
    BacklogPlace,
    CapacityLeft,
    PlacedThere,
    ReplacedInstance,
    WhatIf,
    WhatIfAnswered,
)
from tests.support.decided_builds import DECISION, FLAVOR
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


@asynccontextmanager
async def a_what_if_room(answer: WhatIfAnswered) -> AsyncIterator[tuple[VisitedRoom, list[WhatIf]]]:
    asked: list[WhatIf] = []

    async def tell(question: WhatIf) -> WhatIfAnswered:
        asked.append(question)
        return answer

    async def no_hosts(question: FindProviders) -> ProvidersFound:
        return ProvidersFound(providers=())

    placement = Worker("placement", answers=[answers(PROVIDERS, no_hosts)])
    async with a_visited_room(placement, sent={WHAT_IF.name: tell}) as visited:
        yield visited, asked


async def test_an_empty_form_sends_no_query() -> None:
    async with a_what_if_room(FITS) as (room, asked):
        assert "Enter what an instance needs" in await room.page("/what-if")
    assert not asked


async def test_the_parameters_of_an_address_become_the_request_of_a_boot() -> None:
    async with a_what_if_room(FITS) as (room, asked):
        page = await room.page(
            "/what-if?vcpus=4&memory_mb=4096&count=3&zone=z1&traits=CUSTOM_A,!CUSTOM_B&resources=VGPU:1&avoid=h7"
        )
    (question,) = asked
    request = question.request
    assert (request.flavor.vcpus, request.flavor.memory_mb, len(request.instances)) == (4, 4096, 3)
    assert (request.zone, request.ignore_hosts, question.room) == ("z1", ("h7",), True)
    specs = {"trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden", "resources:VGPU": "1"}
    assert request.flavor.extra_specs == specs
    assert "It fits: 3 instances on 1 host." in page and "&lt;h2&gt;" in page and "1,200" in page
    assert 'value="4096"' in page and "CUSTOM_A,!CUSTOM_B" in page  # the form can be changed and sent again


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (FULL, ("It does not fit", "(no_room)", "2 hosts would fit with 8 VCPU instead of 99", "removed 7")),
        (
            WhatIfAnswered(fits=False, refusal="host: there is none", decision=Decision(code=UNREADABLE)),
            ("The request is invalid: host: there is none",),
        ),
        (
            WhatIfAnswered(fits=False, refusal="quota of project p: 1 used", decision=Decision(code="quota")),
            ("The request would be refused [quota]: quota of project p: 1 used",),
        ),
    ],
)
async def test_a_request_that_does_not_fit_shows_the_reason_and_remedies(
    answer: WhatIfAnswered, says: tuple[str, ...]
) -> None:
    async with a_what_if_room(answer) as (room, _):
        page = await room.page("/what-if?vcpus=99")
    assert all(text in page for text in says)


async def test_a_scheduler_that_does_not_answer_is_named() -> None:
    async with a_visited_room() as alone:
        assert "The scheduler does not answer: no consumer" in await alone.page("/what-if?vcpus=1")


NOTHING: dict[str, Any] = {"builds": BuildsFound(builds=()), "decision": DecisionFound()}


async def test_the_page_of_an_unplaceable_build_shows_the_reason_and_the_decision_now() -> None:
    request = BuildRequested(request=uid(8), instances=(uid(7),), flavor=FLAVOR)
    decided = DecisionFound(known=True, request=request, reason="no room for 1 VCPU", decision=DECISION)
    there = PlacedThere(root=uid(2, "a"), host="h2", cell="c1")
    now = WhatIfAnswered(fits=True, placed=(there,), room=(CapacityLeft(cell="c1", hosts=2, instances=1200),))
    async with a_visited_room(sent={**NOTHING, "decision": decided, WHAT_IF.name: now}) as room:
        page = await room.page(f"/builds/{uid(7)}")
        today = await room.page(f"/builds/{uid(7)}?then=now")
    assert "no room for 1 VCPU" in page and "It fits" not in page
    assert "It fits: 1 on h2" in today and "Capacity for 1,200 more, on 2 hosts." in today


async def test_a_what_if_question_names_the_instances_that_would_be_replaced() -> None:
    replaced = ReplacedInstance(build=uid(6), says="of priority 1: shelved, and placed again later")
    there = PlacedThere(root=uid(2, "a"), host="h2", cell="c1")
    answer = WhatIfAnswered(fits=True, placed=(there,), replaced=(replaced,))
    async with a_what_if_room(answer) as (room, asked):
        page = await room.page("/what-if?vcpus=4")
    assert "It fits: 1 instance on 1 host, if 1 instance is replaced." in page
    assert f'href="/builds/{uid(6)}"' in page and "of priority 1: shelved, and placed again later" in page
    assert [question.replacing for question in asked] == [True]


async def test_a_what_if_question_shows_what_else_prevents_the_request() -> None:
    answer = WhatIfAnswered(fits=False, notes=("no preemption: requests with a topology do not preempt",))
    async with a_what_if_room(answer) as (room, _):
        page = await room.page("/what-if?vcpus=4")
    assert "no preemption: requests with a topology do not preempt." in page


async def test_the_what_if_page_shows_the_backlog_before_a_request_and_its_expected_start() -> None:
    place = BacklogPlace(before=1200, weight=3.0, start_p50=1.9e9, start_p90=2.5e9)
    answer = WhatIfAnswered(fits=False, backlog=place, start_p50=2e9, start_p90=3e9)
    async with a_visited_room(sent={**NOTHING, WHAT_IF.name: answer}) as room:
        page = await room.page("/what-if?vcpus=4")
    assert "backlog</a> of its project: 1,200 requests (weight 3)" in page
    assert re.search(r"Expected evaluation: 50 % within \d+ days, 90 % within \d+ days", page)
    assert re.search(r"Expected start if it waits: 50 % within \d+ days, 90 % within \d+ days", page)
