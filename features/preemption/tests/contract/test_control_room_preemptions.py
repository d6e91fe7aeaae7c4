"""The control room's page of preemption: classes, budgets and victims with their preemptors."""

import re

from msgspec.structs import replace

from bus.queries import BuildsFound
from features.preemption.messages import (
    PREEMPTIONS,
    PRIORITIES,
    Preemption,
    PreemptionsFound,
    PrioritiesFound,
    PriorityClass,
    Victim,
)
from tests.support.decided_builds import NOTHING, STANDS
from tests.support.ids import uid
from tests.support.visited_room import a_visited_room

VICTIM = Victim(build=uid(2), generation=1, attempt=1, holder=uid(4), requeue=True)
CLASSES = PrioritiesFound(classes=(PriorityClass(name="production", value=7, preempts=True, budget=20),))
FOUND = PreemptionsFound(
    preemptions=(Preemption(victim=VICTIM, by=uid(1), project="<shop>", priority=7, at=1.0),),
    used={"<shop>": 3},
)


async def test_the_page_shows_victims_with_their_preemptors_and_budgets() -> None:
    async with a_visited_room(sent={PREEMPTIONS.name: FOUND, PRIORITIES.name: CLASSES}) as room:
        await room.sign_in("reader")
        page = (await room.browser.get("/preemptions")).text
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert "production 7 lower priorities 20" in shown
    assert "&lt;shop&gt; 3" in shown
    assert f"00:00 {uid(2)} 0 {uid(1)} 7 &lt;shop&gt; yes" in shown
    assert f'href="/builds/{uid(2)}"' in page and f'href="/builds/{uid(1)}"' in page


async def test_the_page_shows_which_worker_does_not_answer() -> None:
    async with a_visited_room(sent={PREEMPTIONS.name: FOUND}) as room:
        await room.sign_in("reader")
        page = (await room.browser.get("/preemptions")).text
    assert "The scheduler does not answer" in page and uid(2) in page


async def test_the_page_of_a_build_shows_its_victims_and_the_build_that_preempted_it() -> None:
    lower = Victim(build=uid(2), generation=1, attempt=1, holder=uid(3), priority=1, requeue=True)
    found = (
        Preemption(victim=lower, by=uid(7), project="p", priority=4, at=1.0),
        Preemption(
            victim=replace(lower, build=uid(7), priority=4, requeue=False),
            by=uid(6), project="<shop>", priority=7, at=61.0,
        ),
    )  # fmt: skip
    sent = {
        **NOTHING,
        "builds": BuildsFound(builds=(STANDS,)),
        PREEMPTIONS.name: PreemptionsFound(preemptions=found),
    }
    async with a_visited_room(sent=sent) as room:
        page = await room.page(f"/builds/{uid(7)}")
    shown = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    assert f"Preempted {uid(2)} (priority 1, requeued) at " in shown
    assert f"Preempted by {uid(6)} of project &lt;shop&gt; (priority 7) at " in shown
    assert "00:01 UTC." in shown
    assert f'href="/builds/{uid(2)}"' in page and f'href="/builds/{uid(6)}"' in page
