"""Open pages show changes without a reload; permissions of readers and operators."""

import re
from collections.abc import AsyncIterator

import pytest_asyncio

from bus.messages import IronicSpoke
from compute_sim.ironic import Simulation
from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium
from tests.support.open_berth import OpenBerth


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(chromium: Chromium, berth: OpenBerth) -> AsyncIterator[Tab]:
    async with a_tab(chromium, berth.url) as opened:
        yield opened


async def ended_in_ten_minutes(tab: Tab) -> int:
    return int((await tab.text(".figures > div:last-child dd small")).removeprefix("of "))


async def test_an_open_page_counts_a_new_boot(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open("/")
    before = await ended_in_ten_minutes(visitor)
    await berth.boot()
    await visitor.sees(f"of {before + 1}", ".figures")


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


async def test_the_list_of_failed_builds_shows_no_others(visitor: Tab, berth: OpenBerth) -> None:
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


async def test_the_decision_of_a_refused_build_links_to_hosts(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.open(f"/builds/{berth.named['refused']}")
    await visitor.sees(re.compile("20 hosts would fit with 3[12] VCPU instead of 4000"))
    async with visitor.loading():
        await visitor.click("main .funnel a")
    await visitor.sees("Inventory")


async def test_an_operator_signs_in_and_out(visitor: Tab) -> None:
    await visitor.sign_in("admin")
    assert await visitor.text(".who") == "admin Sign out"
    async with visitor.loading():
        await visitor.click(".who button")
    assert await visitor.text(".who") == "Sign in"


async def test_a_visitor_chooses_the_colours(visitor: Tab) -> None:
    await visitor.colours("light")
    await visitor.open("/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = await visitor.evaluate(ground)
    async with visitor.loading():
        await visitor.click(".theme button[value=dark]")
    assert await visitor.evaluate(ground) != light


IN_SERVICE = ("up", "unknown: no heartbeat so far")  # the latter within a period after the start


async def test_an_operation_without_the_role_is_refused(visitor: Tab, berth: OpenBerth) -> None:
    await visitor.sign_in("somebody")
    await visitor.open(f"/hosts/{berth.named['host']}")
    await visitor.sees("Inventory")
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
    assert await visitor.text("h1 .tag") in IN_SERVICE


async def test_an_operator_disables_and_enables_a_host_by_the_keyboard(
    operator: Tab, berth: OpenBerth
) -> None:
    await operator.open("/hosts/c2-host00010")
    for act, states in (("disable", ("disabled",)), ("enable", IN_SERVICE)):
        await operator.evaluate(f"document.querySelector('button[value={act}]').focus()")
        async with operator.loading():
            await operator.press("Enter")
        await operator.sees(re.compile("|".join(states)), "h1 .tag")


async def test_a_node_with_an_ironic_event_is_updated_on_the_board(
    visitor: Tab, berth: OpenBerth, ironic: Simulation
) -> None:
    node = next(node for node in ironic.conductor.nodes.values() if node.maintenance)
    await visitor.open("/metal?wait=1")
    await visitor.sees("it is in maintenance: a fan")
    node.maintenance_reason = "a <new> fan"
    await berth.bus.publish(IronicSpoke(nodes=(node.uuid,)))
    await visitor.sees("it is in maintenance: a <new> fan")
