"""The control room's page of instances: filters, and pages over all cells."""

import re

import pytest

from berth.settings import Settings
from bus.queries import FindInstances, Instance, InstancesFound
from control_room.pages import instances as pages
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room


def an_instance(number: int, cell: str) -> Instance:
    return Instance(
        build=uid(number), name=f"<{number}>", status="active", cell=cell, host=f"h{number}",
        root=uid(number, "a"), project="p1", flavor="m1",
    )  # fmt: skip


CELLS = {"c1": (1, 4, 5), "c2": (2, 3, 6, 7)}


async def instances_of_p1(question: FindInstances) -> InstancesFound:
    numbers = CELLS[question.cell] if question.project == "p1" else ()
    if question.statuses == ("error",) or question.host:
        numbers = ()
    every = [an_instance(number, question.cell) for number in numbers]
    left = [one for one in every if one.build > question.after]
    found = left[: question.limit]
    return InstancesFound(instances=tuple(found), more=len(left) > len(found), count=len(every))


async def test_instances_are_listed_in_pages_over_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "INSTANCES", 3)
    settings = Settings().having(cells=("c1", "c2"))
    listed, address = list[str](), "/instances?project=p1"
    async with a_visited_room(sent={"instances": instances_of_p1}, settings=settings) as room:
        for _ in range(5):
            page = await room.page(address)
            assert "<small>7</small>" in page
            listed += re.findall(r"&lt;(\d)&gt;</a>", page)
            if (found := re.search(r'href="([^"]+)">Next', page)) is None:
                break
            address = found[1].replace("&amp;", "&")
    assert listed == list("1234567")
    assert f"/hosts/{uid(7, 'a')}" in page and f"/builds/{uid(7)}" in page


async def test_filters_reach_the_cells_and_an_empty_page_explains_itself() -> None:
    settings = Settings().having(cells=("c1", "c2"))
    async with a_visited_room(sent={"instances": instances_of_p1}, settings=settings) as room:
        assert "<small>3</small>" in await room.page("/instances?project=p1&cell=c1")
        assert "has these properties" in await room.page("/instances?project=p1&status=error")
        assert "has these properties" in await room.page("/instances?project=p1&host=h9")


async def test_an_invalid_filter_is_refused_with_its_field() -> None:
    async with a_visited_room(sent={"instances": instances_of_p1}) as room:
        page = await room.page("/instances?status=lost", 400)
    assert "These instances cannot be searched" in page
    assert "$.statuses" in page


async def test_a_page_without_the_answers_of_cells_says_so() -> None:
    async with a_visited_room() as room:
        assert "Incomplete, these did not answer: cell c1" in await room.page("/instances?project=p1")
