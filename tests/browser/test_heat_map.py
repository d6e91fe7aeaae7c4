"""The heat map in a browser: the text before it is drawn, keyboard use, thousands of hosts."""

import json
from typing import Any

from tests.support.browser_tab import Tab
from tests.support.open_berth import OpenBerth
from tests.support.waiting import until


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


async def test_a_heat_map_without_hosts_says_so(tab: Tab) -> None:
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
