"""Open pages show changes without a reload; permissions of readers and operators."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from bus.messages import IronicSpoke
from compute_sim.ironic import Simulation
from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium
from tests.support.envelopes import a_letter
from tests.support.open_berth import ACTS, PAGES, SCHEMES, WIDTHS, OpenBerth
from tests.support.waiting import until


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(chromium: Chromium, berth: OpenBerth) -> AsyncIterator[Tab]:
    async with a_tab(chromium, berth.url) as opened:
        yield opened


async def ended_in_ten_minutes(tab: Tab) -> int:
    return int((await tab.text(".figures > div:last-child dd small")).removeprefix("of "))


async def test_unchanged_elements_of_an_open_page_are_kept(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open("/")
    heading = "[...document.querySelectorAll('[data-live] h2')].at(-1)"
    for _ in range(5):  # an alarm that comes or goes makes all of it anew
        before = await ended_in_ten_minutes(visitor)
        await visitor.evaluate(f"{heading}.marked = true")
        await berth.boot()
        await visitor.sees(re.compile(f"of (?!{before}$)[0-9]+$"), ".figures > div:last-child dd small")
        if await visitor.evaluate(f"{heading}.marked"):
            return
    raise AssertionError("its last heading was made anew each time")


async def test_a_new_boot_is_listed_and_opened_by_the_keyboard(visitor: Tab, berth: OpenBerth) -> None:
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


async def test_the_list_of_failed_builds_shows_only_failed_builds(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open("/builds?failed=1")
    (active,) = await berth.boot()
    refused = await berth.boot_in_vain()
    await visitor.sees(refused.instances[0])
    assert active.build not in await visitor.text()


async def test_waiting_requests_appear_at_their_position_with_missing_resources(
    operator: Tab, berth: OpenBerth
) -> None:
    project = berth.bus.clock.uuid()
    await operator.open(f"/waiting?project={project}")
    await operator.sees("No requests of")
    first = await berth.boot_later(zone="nowhere", project=project)
    await operator.sees(f"request {first}")
    urgent = await berth.boot_later(zone="nowhere", project=project, priority=3)
    await operator.sees(re.compile(rf"1\. 1 × small priority 3 .*{urgent}.* 2\. .*{first}"))
    await operator.sees(re.compile("position [0-9]+ in class [0-9a-f]+"), "main ol li")
    lacks = "Missing .*zone: no hosts in zone .nowhere.*Woken by 1 VCPU free on one host in zone nowhere"
    await operator.sees(re.compile(lacks), "main ol li")
    await operator.evaluate(f"document.getElementById('end-{urgent}').focus()")
    async with operator.loading():
        await operator.press("Enter")
    await operator.sees("no longer waits")
    await operator.open(f"/waiting?project={project}")
    await operator.sees("1 request of")
    await berth.end_wait(first)  # somewhere else
    await operator.sees("No requests of")


async def test_a_visitor_chooses_the_colours(visitor: Tab) -> None:
    await visitor.colours("light")
    await visitor.open("/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await visitor.evaluate(ground)
    async with visitor.loading():
        await visitor.click(".theme button[value=dark]")
    assert await visitor.evaluate(ground) != light


async def test_a_node_with_an_ironic_event_is_updated_on_the_board(
    visitor: Tab, berth: OpenBerth, ironic: Simulation
) -> None:
    node = next(node for node in ironic.conductor.nodes.values() if node.maintenance)
    await visitor.open("/metal?wait=1")
    await visitor.sees("it is in maintenance: a fan")
    node.maintenance_reason = "a <new> fan"
    await berth.bus.publish(IronicSpoke(nodes=(node.uuid,)))
    await visitor.sees("it is in maintenance: a <new> fan")


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


async def test_a_reader_sees_no_buttons(tab: Tab, berth: OpenBerth) -> None:
    await tab.open(f"/bus/letter?id={berth.named['letter']}")
    assert await tab.number_of(PRESSED) == 0
    await tab.open("/bus/dead")
    await tab.sees("sign in with a token of the operator or admin role")
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


async def told(tab: Tab, answer: dict[str, Any] | None) -> None:
    said = (
        "new Promise(() => {})" if answer is None else f"Promise.resolve(Response.json({json.dumps(answer)}))"
    )
    await tab.tell("Page.addScriptToEvaluateOnNewDocument", source=f"window.fetch = () => {said};")
    await tab.open("/hosts")


async def test_a_heat_map_without_data_says_that_it_loads(tab: Tab) -> None:
    await told(tab, None)
    await tab.sees("The hosts are being loaded", "#heat")


async def test_a_heat_map_without_hosts_shows_a_message(tab: Tab) -> None:
    await told(tab, columns(1) | {"name": [], "group": [], "root": [], "fits": []})
    await tab.sees("There are no hosts", "#heat")


async def test_a_few_hosts_are_large_named_tiles_that_keys_open(tab: Tab, berth: OpenBerth) -> None:
    await tab.open("/hosts")
    await tab.sees("25 · capacity for", "h1")  # five of them are nodes of Ironic's
    assert await tab.evaluate("document.getElementById('heat-size').value") == "4"
    await tab.evaluate("document.getElementById('heat').focus()")
    await tab.press("ArrowRight", "ArrowRight")
    await tab.sees("c1-host00002 cell c1", "#heat-about")
    async with tab.loading():
        await tab.press("Enter")
    await tab.sees("c1-host00002", "h1")


async def test_usage_in_the_heat_map_changes_while_it_is_open(tab: Tab, berth: OpenBerth) -> None:
    await tab.open("/hosts?flavor=VCPU:1")
    await tab.sees("25 · capacity for", "h1")  # five of them are nodes of Ironic's
    room = await tab.text("#heat-count")
    await berth.boot()

    async def less() -> bool:
        return await tab.text("#heat-count") != room

    await until(less, "there is less room", picture=lambda: tab.text("#heat-count"))


async def test_only_visible_tiles_of_ten_thousand_hosts_are_drawn(tab: Tab) -> None:
    await told(tab, columns(10_000))
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
