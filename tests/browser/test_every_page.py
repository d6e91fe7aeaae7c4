"""Requirements for every page of the control room in a real browser: light and dark, wide and narrow."""

import pytest

from tests.support.browser_tab import Tab
from tests.support.open_berth import OpenBerth
from tests.support.room_pages import ACTS, PAGES, SCHEMES, WIDTHS

BY_COLOUR = ("color-contrast", "link-in-text-block")
BY_WIDTH = ("scrollable-region-focusable",)
RULES = {("light", 1280): (), ("light", 390): BY_WIDTH, ("dark", 1280): BY_COLOUR, ("dark", 390): BY_WIDTH}


async def visit(tab: Tab, berth: OpenBerth, page: str) -> None:
    if page == "nowhere":
        tab.expects("404")
    await tab.open(PAGES[page].format_map(berth.named))
    await tab.still()


@pytest.mark.parametrize("page", PAGES)
async def test_every_page_is_accessible_and_fits_the_screen(
    operator: Tab, berth: OpenBerth, page: str
) -> None:
    await visit(operator, berth, page)
    found = []
    for scheme in SCHEMES:
        for width in WIDTHS:
            await operator.colours(scheme)
            await operator.wide(width)
            found += [f"{scheme} {width}: {one}" for one in await operator.axe(RULES[scheme, width])]
            beyond = await operator.evaluate("document.documentElement.scrollWidth - innerWidth")
            if beyond > 0:
                found.append(f"{scheme} {width}: it is {beyond} pixels wider than the screen")
    assert found == []


@pytest.mark.parametrize("page", PAGES)
async def test_the_keyboard_reaches_every_control_with_visible_focus(
    operator: Tab, berth: OpenBerth, page: str
) -> None:
    await visit(operator, berth, page)
    await operator.wide(390)
    stops = await operator.stops()
    assert stops[0] == "a To the content"
    missed = await operator.missed()
    assert missed == []
    for act in ACTS.get(page, ()):
        assert act.format_map(berth.named) in stops
