"""Dead letters replayed and dropped, queues that fill, and what-if, in a browser."""

import re

import msgspec

from tests.support.browser_tab import Tab
from tests.support.envelopes import a_letter
from tests.support.open_berth import OpenBerth

PRESSED = "main button, main input:not([type=hidden])"


async def store_dead_letter(berth: OpenBerth, id_: str) -> None:
    await berth.bus.transport.store_dead_letter(
        a_letter(
            id=id_,
            queue="conductor.c1:agent.report.c1",
            key="agent.report.c1",
            type="AgentReported",
            reason=f"{id_} has no attempt",
            body=msgspec.json.encode({"build": id_}),
        )
    )


async def test_an_operator_replays_a_dead_letter(tab: Tab, berth: OpenBerth) -> None:
    await store_dead_letter(berth, "to-be-replayed")
    await tab.sign_in("admin")
    await tab.open("/bus/dead")
    await tab.sees("to-be-replayed has no attempt")
    await tab.click('input[name="letter:to-be-replayed"]')
    async with tab.loading():
        await tab.click("button[value=replay]")
    await tab.sees("Replay 1 dead letter?", "h1")
    async with tab.loading():
        await tab.click("button[value=replay]")
    assert await tab.path() == "/bus/dead"
    await tab.sees("1 replayed.")
    assert "to-be-replayed has no attempt" not in await tab.text()
    await berth.bus.transport.remove_dead_letters(["to-be-replayed"])


async def test_a_dead_letter_is_opened_and_dropped_by_the_keyboard(tab: Tab, berth: OpenBerth) -> None:
    await store_dead_letter(berth, "to-be-dropped")
    await tab.sign_in("admin")
    await tab.open("/bus/letter?id=to-be-dropped")
    await tab.sees('"build": "to-be-dropped"')
    for _ in range(2):  # asked, and asked whether that is meant
        await tab.evaluate("document.querySelector('button[value=drop]').focus()")
        async with tab.loading():
            await tab.press("Enter")
    await tab.sees("1 dropped.")
    assert "to-be-dropped has no attempt" not in await tab.text()


async def test_a_reader_sees_no_buttons(tab: Tab, berth: OpenBerth) -> None:
    await tab.open(f"/bus/letter?id={berth.named['letter']}")
    assert await tab.number_of(PRESSED) == 0
    await tab.open("/bus/dead")
    await tab.sees("sign in with a token whose role may act")
    assert await tab.number_of(PRESSED) == 0


async def test_an_open_page_updates_the_count_of_dead_letters(tab: Tab, berth: OpenBerth) -> None:
    await tab.open("/bus")
    await tab.sees("Queues without consumer")  # it has been counted
    before = int(await tab.text(".figures a"))
    await store_dead_letter(berth, "one-more")
    await tab.sees(str(before + 1), ".figures a")
    await berth.bus.transport.remove_dead_letters(["one-more"])


async def test_the_what_if_form_shows_an_answer(tab: Tab, berth: OpenBerth) -> None:
    await tab.open("/what-if")
    await tab.fill("input[name=vcpus]", "4000")
    async with tab.loading():
        await tab.press("Enter")
    await tab.sees("It does not fit")
    await tab.sees(re.compile("20 hosts would fit with 3[12] VCPU instead of 4000"))
    await tab.fill("input[name=vcpus]", "2")
    async with tab.loading():
        await tab.click("button.main")
    await tab.sees("It fits: 1 instance on 1 host.")


async def test_the_capacity_form_adds_hypothetical_hosts(tab: Tab, berth: OpenBerth) -> None:
    await tab.open("/what-if/capacity")
    await tab.fill("textarea[name=add]", "2 x VCPU:64,MEMORY_MB:4096")
    await tab.fill("textarea[name=mix]", "VCPU:64")
    async with tab.loading():
        await tab.click("button.main")
    await tab.sees("0 whole mixes fit now, 2 then.")
