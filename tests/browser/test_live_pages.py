"""In a browser: open pages show changes without a reload, and all pages are accessible."""

import json
import re
from typing import Any

import pytest

from tests.support.browser_tab import Tab
from tests.support.envelopes import a_letter
from tests.support.open_berth import NARROW, PAGES, OpenBerth
from tests.support.waiting import until

ACTS = {
    "waiting": ("button Show", "button Cancel request {waits}"),
    "moves": ("button Confirm: stay on the new host", "button Revert: return to the source"),
    "move": ("button Confirm: stay on the new host", "button Revert: return to the source"),
    "host": (
        "button Drain: disable it and move all instances",
        "button Disable",
        "button Enable",
        "button Force down",
        "button Undo force down",
    ),
    "dead-letters": ("button Replay marked …", "button Drop marked …"),
    "dead-letter": ("button Replay …", "button Drop …"),
    "what-if": ("button Would it fit?",),
    "capacity": ("button How many fit?",),
    "sign-in": ("button Sign in",),
    "hosts": ("button Show", "section Hosts as tiles; arrow keys go from one to the next, Enter opens it"),
    "builds": ("button Show",),
    "projects": ("button Show", "summary Set or unset limits"),
    "project": ("button Set limits", "button Unset limits"),
    "reservations": ("button Show", "summary Create a reservation"),
    "headroom": ("button Keep headroom", "button Release all slots and keep none"),
}


async def ended_in_ten_minutes(tab: Tab) -> int:
    return int((await tab.text(".figures > div:last-child dd small")).removeprefix("of "))


async def test_unchanged_elements_of_an_open_page_are_kept(operator: Tab, berth: OpenBerth) -> None:
    await operator.open("/")
    heading = "[...document.querySelectorAll('[data-live] h2')].at(-1)"
    for _ in range(5):  # an alarm that comes or goes makes all of it anew
        before = await ended_in_ten_minutes(operator)
        await operator.evaluate(f"{heading}.marked = true")
        await berth.boot()
        await operator.sees(re.compile(f"of (?!{before}$)[0-9]+$"), ".figures > div:last-child dd small")
        if await operator.evaluate(f"{heading}.marked"):
            return
    raise AssertionError("its last heading was made anew each time")


async def test_a_new_boot_is_listed_and_opened_by_the_keyboard(operator: Tab, berth: OpenBerth) -> None:
    await operator.open("/builds")
    (ended,) = await berth.boot()
    await operator.sees(ended.build)
    await operator.evaluate(f"document.querySelector('a[href=\"/builds/{ended.build}\"]').focus()")
    (other,) = await berth.boot()
    await operator.sees(other.build)  # the list is another, and the keyboard is where it was
    async with operator.loading():
        await operator.press("Enter")
    assert await operator.path() == f"/builds/{ended.build}"
    await operator.sees(f"active on {ended.host}")


async def test_a_visitor_chooses_the_colours(tab: Tab) -> None:
    await tab.colours("light")
    await tab.open("/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await tab.evaluate(ground)
    async with tab.loading():
        await tab.click(".theme button[value=dark]")
    assert await tab.evaluate(ground) != light


async def test_an_open_page_updates_the_count_of_dead_letters(operator: Tab, berth: OpenBerth) -> None:
    await operator.open("/bus")
    await operator.sees("Queues without consumer")  # it has been counted
    before = int(await operator.text(".figures a"))
    await berth.bus.transport.store_dead_letter(a_letter(id="one-more"))
    await operator.sees(str(before + 1), ".figures a")
    await berth.bus.transport.remove_dead_letters(["one-more"])


@pytest.mark.parametrize("page", PAGES)
async def test_every_page_is_accessible_fits_the_screen_and_is_used_by_keyboard(
    operator: Tab, berth: OpenBerth, page: str
) -> None:
    if page == "nowhere":
        operator.expects("404")
    await operator.open(PAGES[page].format_map(berth.named))
    await operator.still()
    found = await operator.axe() + await operator.axe_colours() + await operator.too_wide()
    await operator.colours("dark")
    found += await operator.axe_colours()
    await operator.wide(NARROW)
    found += await operator.axe_width() + await operator.too_wide()
    assert found == []

    stops = await operator.stops()
    assert stops[0] == "a To the content"
    missed = await operator.missed()
    assert missed == []
    for act in ACTS.get(page, ()):
        assert act.format_map(berth.named) in stops


def columns(count: int) -> dict[str, Any]:
    return {
        "number": 1,
        "layout": 1,
        "groups": [["c1", "z1"], ["c2", ""]],
        "group": [host * 2 // count for host in range(count)],
        "name": [f"host{host}" for host in range(count)],
        "root": [f"root{host}" for host in range(count)],
        "closed": [],
        "classes": ["VCPU"],
        "capacity": {"VCPU": [64] * count},
        "used": {"VCPU": [32] * count},
        "fits": [host % 10 for host in range(count)],
    }


async def sent(tab: Tab, answer: dict[str, Any] | None) -> None:
    reply = (
        "new Promise(() => {})" if answer is None else f"Promise.resolve(Response.json({json.dumps(answer)}))"
    )
    await tab.tell("Page.addScriptToEvaluateOnNewDocument", source=f"window.fetch = () => {reply};")
    await tab.open("/hosts")


async def test_a_heat_map_without_data_says_that_it_loads(tab: Tab) -> None:
    await sent(tab, None)
    await tab.sees("The hosts are being loaded", "#heat")


async def test_a_heat_map_without_hosts_shows_a_message(tab: Tab) -> None:
    await sent(tab, columns(1) | {"name": [], "group": [], "root": [], "fits": []})
    await tab.sees("There are no hosts", "#heat")


async def test_a_few_hosts_are_large_named_tiles_that_keys_open(operator: Tab, berth: OpenBerth) -> None:
    await operator.open("/hosts")
    await operator.sees("25 · capacity for", "h1")  # five of them are nodes of Ironic's
    assert await operator.evaluate("document.getElementById('heat-size').value") == "4"
    await operator.evaluate("document.getElementById('heat').focus()")
    await operator.press("ArrowRight", "ArrowRight")
    await operator.sees("c1-host00002 cell c1", "#heat-about")
    async with operator.loading():
        await operator.press("Enter")
    await operator.sees("c1-host00002", "h1")


async def test_usage_in_the_heat_map_changes_while_it_is_open(operator: Tab, berth: OpenBerth) -> None:
    await operator.open("/hosts?flavor=VCPU:1")
    await operator.sees("25 · capacity for", "h1")  # five of them are nodes of Ironic's
    room = await operator.text("#heat-count")
    await berth.boot()

    async def less() -> bool:
        return await operator.text("#heat-count") != room

    await until(less, "there is less room", picture=lambda: operator.text("#heat-count"))


async def test_only_visible_tiles_of_ten_thousand_hosts_are_drawn(tab: Tab) -> None:
    await sent(tab, columns(10_000))
    await tab.sees("10,000 · capacity for 45,000 more", "h1")
    await tab.still()  # tiles are drawn in the next animation frame
    assert 1 <= await tab.number_of("#heat-space canvas") <= 10
    await tab.fill("#heat-find", "host9987")
    await tab.sees("host9987 cell c2", "#heat-about")
    await tab.still()
    assert 1 <= await tab.number_of("#heat-space canvas") <= 10
    first = "parseFloat(document.querySelector('#heat-space canvas').style.top)"
    assert await tab.evaluate(f"{first} > 400")


IN_SERVICE = ("up", "unknown: no heartbeat so far")  # the latter within a period after the start


async def test_an_operator_disables_and_enables_a_host_by_the_keyboard(
    operator: Tab, berth: OpenBerth
) -> None:
    await operator.open("/hosts/c2-host00010")
    for act, states in (("disable", ("disabled",)), ("enable", IN_SERVICE)):
        await operator.evaluate(f"document.querySelector('button[value={act}]').focus()")
        async with operator.loading():
            await operator.press("Enter")
        await operator.sees(re.compile("|".join(states)), "h1 .tag")
