"""Starts and stops a drain from a host's page, and confirms a waiting move."""

import re

from tests.support.browser_tab import Tab
from tests.support.open_berth import OpenBerth


async def test_a_drain_is_started_on_the_page_of_a_host_and_stopped_on_the_page_of_moves(
    tab: Tab, berth: OpenBerth
) -> None:
    (waits,) = await berth.boot()
    host = (await berth.moved(waits.build)).host
    (goes,) = await berth.boot(wanted_host=host)
    await tab.sign_in("admin")
    await tab.open(f"/hosts/{host}")
    async with tab.loading():
        await tab.click("button[value=drain]")
    await tab.sees("draining: disabled by an operator: drain", "h1 .tag")

    await tab.open(f"/moves?host={host}")
    card = ".cards li:has(button[value=stop])"
    await tab.sees("could not be moved", card)
    await tab.sees(goes.build[:8], "table")
    assert await tab.axe() == []
    async with tab.loading():
        await tab.click("button[value=stop]")
    await tab.open(f"/hosts/{host}")
    await tab.sees("disabled by an operator", "h1 .tag")
    await tab.sees(waits.build, ".two table")
    assert goes.build not in await tab.text(".two table")
    async with tab.loading():
        await tab.click("button[value=enable]")
    await tab.sees(re.compile("up|no heartbeat so far"), "h1 .tag")


async def test_an_open_page_shows_a_new_move_and_an_operator_reverts_it(tab: Tab, berth: OpenBerth) -> None:
    (built,) = await berth.boot()
    await tab.sign_in("admin")
    await tab.open(f"/moves?host={built.host}")
    told = await berth.moved(built.build)
    await tab.sees(f"{built.host} → {told.host} runs on {told.host}, waits for confirmation")
    async with tab.loading():
        await tab.click(f"#revert-{told.move}")
    assert await tab.path() == f"/moves/{told.move}"
    await tab.sees("returned to its source")
    assert await tab.number_of("main form") == 0


async def test_a_move_is_confirmed_by_the_keyboard(tab: Tab, berth: OpenBerth) -> None:
    (built,) = await berth.boot()
    told = await berth.moved(built.build)
    await tab.sign_in("admin")
    await tab.open(f"/moves/{told.move}")
    await tab.evaluate("document.querySelector('button[value=confirm]').focus()")
    async with tab.loading():
        await tab.press("Enter")
    await tab.sees("done", "main .tag")
    await tab.open(f"/builds/{built.build}")
    await tab.sees(f"active on {told.host}")
