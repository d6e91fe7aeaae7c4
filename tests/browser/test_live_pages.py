"""What happens is seen on pages that are open, without loading them again; and who may do what there."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium
from tests.support.open_berth import OpenBerth


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(chromium: Chromium, berth: OpenBerth) -> AsyncIterator[Tab]:
    """Somebody who has shown no token, and may look."""
    async with a_tab(chromium, berth.url) as opened:
        yield opened


async def ended_in_ten_minutes(tab: Tab) -> int:
    return int((await tab.text(".figures > div:last-child dd small")).removeprefix("of "))


async def test_a_boot_is_counted_where_somebody_looks(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open("/")
    before = await ended_in_ten_minutes(visitor)
    await berth.boot()
    await visitor.sees(f"of {before + 1}", ".figures")


async def test_a_boot_is_listed_and_its_page_is_one_key_away(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open("/builds")
    (ended,) = await berth.boot()
    await visitor.sees(ended.build)
    await visitor.evaluate(f"document.querySelector('a[href=\"/builds/{ended.build}\"]').focus()")
    (other,) = await berth.boot()
    await visitor.sees(other.build)  # the list is another, and the keyboard is where it was
    async with visitor.loading():
        await visitor.press("Enter")
    assert await visitor.path() == f"/builds/{ended.build}"
    await visitor.sees(f"active on {ended.host}")


async def test_only_what_failed_is_listed_where_that_is_asked(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open("/builds?failed=1")
    (active,) = await berth.boot()
    refused = await berth.boot_in_vain()
    await visitor.sees(refused.instances[0])
    assert active.build not in await visitor.text()


async def test_the_reason_of_a_refusal_leads_to_hosts(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open(f"/builds/{berth.named['refused']}")
    await visitor.sees("20 hosts would fit with 3")  # 32 VCPU, or 31: others boot here too
    await visitor.sees("VCPU instead of 4000")
    async with visitor.loading():
        await visitor.click("main .funnel a")
    await visitor.sees("What it has")


async def test_a_token_is_shown_once_and_taken_back(visitor: Tab) -> None:
    await visitor.sign_in("admin")
    assert await visitor.text(".who") == "admin Sign out"
    async with visitor.loading():
        await visitor.click(".who button")
    assert await visitor.text(".who") == "Sign in"


async def test_colours_are_chosen_by_hand(visitor: Tab) -> None:
    await visitor.colours("light")
    await visitor.open("/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await visitor.evaluate(ground)
    async with visitor.loading():
        await visitor.click(".theme button[value=dark]")
    assert await visitor.evaluate(ground) != light


async def test_an_act_is_refused_without_the_role(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.sign_in("somebody")
    await visitor.open(f"/hosts/{berth.named['host']}")
    await visitor.sees("What it has")
    assert "Force down" not in await visitor.text()
    visitor.expects("403")
    status = await visitor.evaluate(
        """(() => {
            const said = new URLSearchParams(new FormData(document.querySelector("form.who")));
            said.set("act", "disable");
            return fetch(location.pathname, { method: "POST", body: said }).then((answer) => answer.status);
        })()"""
    )
    assert status == 403
    await visitor.open(f"/hosts/{berth.named['host']}")
    assert await visitor.text("h1 .tag") == "open"


async def test_an_operator_closes_a_host_and_opens_it_by_keyboard(operator: Tab, berth: OpenBerth) -> None:
    await operator.open("/hosts/c2-host00010")
    for act, state in (("disable", "disabled"), ("enable", "open")):
        await operator.evaluate(f"document.querySelector('button[value={act}]').focus()")
        async with operator.loading():
            await operator.press("Enter")
        await operator.sees(state, "h1 .tag")
