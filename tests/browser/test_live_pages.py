"""In a browser: open pages show changes without a reload, and all pages are accessible."""

import re

import pytest

from tests.support.browser_tab import Tab
from tests.support.open_berth import NARROW, PAGES, OpenBerth

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
