"""The control room's page of projects: usage, limits, waiting requests, instances, and the form."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bus.queries import FindWaiting, WaitingFound
from bus.replication import PlacementChanged
from bus.reports import Inventory
from features.quotas import pages
from features.quotas.messages import DEFAULT, QUOTAS, Quota, QuotasFound
from features.quotas.tests.support.limits import limit, quota
from placement_worker.testing import Placement
from tests.support.placement_builders import a_placement, a_report
from tests.support.placement_calls import report, silent_placement
from tests.support.visited_room import VisitedRoom, a_visited_room
from tests.support.waiting import until

INVENTORIES = {"VCPU": Inventory(total=8), "MEMORY_MB": Inventory(total=8192)}


@pytest.fixture
async def placement() -> AsyncIterator[Placement]:
    async with a_placement("sqlite+aiosqlite://") as made:
        assert await report(made, a_report(1, inventories=INVENTORIES)) == [""]
        yield made


async def some_wait(question: FindWaiting) -> WaitingFound:
    """Answer as a scheduler in which three requests of p1 wait."""
    by_project = {project: 3 for project in question.projects if project == "p1"}
    backlog, shares = {"p1": 1200}, {"p1": 0.75, "p9": 0.25}
    return WaitingFound(waiting=(), count=9, by_project=by_project, backlog=backlog, shares=shares)


@asynccontextmanager
async def a_room(
    placement: Placement, answers: Mapping[str, Any] | None = None
) -> AsyncIterator[VisitedRoom]:
    sent = {"waiting": some_wait} if answers is None else answers
    async with a_visited_room(silent_placement(placement), answered=(QUOTAS.name,), sent=sent) as room:
        yield room


@pytest.fixture
async def room(placement: Placement) -> AsyncIterator[VisitedRoom]:
    async with a_room(placement) as visited:
        await visited.sign_in("admin")
        yield visited


def cells(page: str) -> list[list[str]]:
    """Return the texts of the cells of the page's table of projects, row by row."""
    rows = re.findall(r"<tr.*?</tr>", page.partition('<table class="quotas">')[2], re.DOTALL)
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[" ".join(re.sub(r"<[^>]*>", "", cell).split()) for cell in row] for row in found][1:]


# The table


async def test_projects_are_listed_in_pages(
    room: VisitedRoom, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    await limit(placement, DEFAULT, VCPU=8)
    for project in ("a&b", "c", "d", "e"):
        await limit(placement, project, DISK_GB=10)
    listed, address = list[str](), "/projects"
    for _ in range(3):
        page = await room.page(address)
        assert "<dt>VCPU</dt><dd>8</dd>" in page  # the default, on each page
        listed += [row[0].split()[0] for row in cells(page) if len(row) == 6]
        found = re.search(r'href="(/projects\?after=[^"]+)">Next', page)
        if found is None:
            break
        address = found[1]
    assert listed == ["a&amp;b", "c", "d", "e"]
    assert 'href="/projects">To the first' in page and 'data-live="/projects/events?after=' in page


async def test_without_answers_the_page_says_what_is_unknown(placement: Placement) -> None:
    async with a_visited_room() as alone:
        assert "Placement does not answer: no consumer" in await alone.page("/projects")
    await limit(placement, VCPU=1)
    async with a_room(placement, answers={}) as room:
        page = await room.page("/projects")
    assert "The scheduler does not answer" in page
    assert cells(page)[0][0] == "p1 waiting requests unknown · weight 1 · instances"


async def test_ids_of_projects_are_escaped(room: VisitedRoom, placement: Placement) -> None:
    odd = "<b>&\u202e/?#' \""
    await limit(placement, odd, VCPU=1)
    page = await room.page("/projects")
    assert "<b>" not in page and "\u202e" not in page
    assert "project=%3Cb%3E%26%E2%80%AE/%3F%23%27%20%22" in page


# Updates of an open page


async def test_an_open_page_shows_changed_quotas_and_waiting_requests(
    room: VisitedRoom, placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SECONDS", 3600.0)
    async with a_room(placement) as patient, patient.following("/projects/events") as sent:
        await until(lambda: "No project has a limit" in "".join(sent))
        await limit(placement, VCPU=7)

        async def announced() -> bool:
            """Publish placement's change, which is repeated until the page has subscribed."""
            await patient.bus.publish(PlacementChanged(number=1, changes=(), wakes=("quota:p1",)))
            return ">p1</a>" in "".join(sent)

        await until(announced)


# Set and unset


async def test_an_operator_sets_and_unsets_limits(room: VisitedRoom, placement: Placement) -> None:
    assert "nothing used, no limit" in await room.page("/projects?project=p1")  # and is cached
    answer = await room.send("/projects", act="set", project=" p1 ", limits="VCPU=4, instances=2  DISK_GB=-1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/projects?project=p1&done=set")
    assert (await quota(placement)).limits == {"VCPU": 4, "instances": 2, "DISK_GB": -1}
    page = await room.page(answer.headers["location"])
    assert "The limits of project p1 were set." in page and 'name="project" value="p1"' in page
    assert ["VCPU", "", "0", "4", ""] in [row[-5:] for row in cells(page)]
    assert (
        await room.send("/projects", act="unset", project="p1", resources="VCPU DISK_GB")
    ).status_code == 303
    assert (await quota(placement)).limits == {"instances": 2}
    assert (await room.send("/projects", act="unset", project="p1", resources="")).status_code == 303
    assert (await quota(placement)).limits == {}


async def test_an_operator_sets_the_default_limits(room: VisitedRoom, placement: Placement) -> None:
    answer = await room.send("/projects", act="set", project="default", limits="VCPU=4")
    assert (await quota(placement, DEFAULT)).limits == {"VCPU": 4}
    page = await room.page(answer.headers["location"])
    assert "<dt>VCPU</dt><dd>4</dd>" in page and 'name="project" value="default"' in page
    assert "of all projects without limits of their own were set" in page


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"act": "set", "limits": "VCPU"}, "VCPU: it is RESOURCE=LIMIT"),
        ({"act": "set", "limits": "VCPU=2 x=<i>"}, "x=&lt;i&gt;: it is RESOURCE=LIMIT"),
        ({"act": "set", "limits": "VCPU=-2"}, "VCPU=-2: it is RESOURCE=LIMIT"),
        ({"act": "set", "limits": "VCPU=4 CUSTOM_NONE=1"}, "CUSTOM_NONE: neither a resource class"),
        ({"act": "set", "limits": " , "}, "No limit was entered"),
        ({"act": "set", "limits": "VCPU=4", "project": " "}, "Enter the id of a project"),
        ({"act": "set", "limits": "VCPU=4", "project": "a\x00b"}, "Enter the id of a project"),
        ({"act": "set", "limits": "VCPU=4", "project": "p" * 256}, "Enter the id of a project"),
        ({"act": "unset", "resources": "VCPUS"}, "no limit of its own of VCPUS; it has limits of: MEMORY_MB"),
    ],
)  # fmt: skip
async def test_an_error_is_shown_at_the_form_with_the_entered_text(
    room: VisitedRoom, placement: Placement, given: dict[str, str], problem: str
) -> None:
    await limit(placement, MEMORY_MB=512)
    answer = await room.send("/projects", headers={}, **{"project": "p1", **given})
    assert answer.status_code == 409
    forms = answer.text.partition('<details class="quota-forms" open>')[2].partition("</details>")[0]
    assert problem in forms and f'id="{given["act"]}-problem"' in forms
    entered = (given.get("limits") or given["resources"]).replace("<i>", "&lt;i&gt;")
    assert f'value="{entered}"' in forms
    assert (await quota(placement)).limits == {"MEMORY_MB": 512}


async def test_an_unknown_operation_is_refused(room: VisitedRoom, placement: Placement) -> None:
    answer = await room.send("/projects", act="<delete>", project="p1", limits="VCPU=1")
    assert (answer.status_code, "&lt;delete&gt;" in answer.text) == (400, True)


async def test_limits_of_keystone_are_shown_without_a_form() -> None:
    found = QuotasFound(
        quotas=(Quota(project="p1", limits={"VCPU": 4}, effective={"VCPU": 4}),), source="keystone"
    )
    async with a_visited_room(sent={QUOTAS.name: found, "waiting": some_wait}) as room:
        await room.sign_in("admin")
        page = await room.page("/projects")
    assert "The limits are those of Keystone" in page and "Set limits" not in page
    assert cells(page)[0][1:] == ["VCPU", "", "0", "4", ""]


# Instances
