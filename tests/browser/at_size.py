"""`make room-bench`: the control room before many hosts and builds, in a browser beside it.

What it prints: how long the first paint of each page takes, an update after its event, and a frame while
the heat map scrolls; the browser's memory while pages stay open and builds end; how fast builds end with
the first page open and without, by turns.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic, time

import msgspec

from berth import wiring
from berth.commands.builds import boot_request
from berth.loadtest import Load, LoadPlan
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.requests import Flavor
from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium, a_chromium
from tests.support.open_berth import OpenBerth, lived_in
from tests.support.room_pages import PAGES

SMALL = (Flavor(name="small", vcpus=1, memory_mb=256, disk_gb=1),)


def say(**figures: object) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def a_berth(directory: str, hosts: int) -> AsyncIterator[OpenBerth]:
    """In a process of its own, as operators have it."""
    command = ["-m", "berth", "up", "--hosts", str(hosts), "--cells", "4", "--state-dir", directory]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--control-room",
        "127.0.0.1:0",
        "--build-time",
        "exponential:0.1",
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        url = ""
        while not url:
            line = (await process.stdout.readline()).decode()
            assert line, "it has ended"
            if "the control room is at " in line:
                url = line.split()[-1]
        settings = Settings().having(state_dir=directory, hosts=hosts)
        async with Bus(wiring.transport(settings, "load")) as bus:
            yield OpenBerth(url, bus, settings)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def boots_a_second(berth: OpenBerth, count: int, rate: float = 0.0, seed: int = 1) -> float:
    plan = LoadPlan(boots=count, rate=rate, window=500, flavors=SMALL, seed=seed, patience=300.0)
    return (await Load(berth.bus, plan).run()).per_second


async def heap(tab: Tab) -> int:
    """Bytes that are in use once what is not needed has been let go."""
    await tab.tell("HeapProfiler.collectGarbage")
    return int((await tab.tell("Runtime.getHeapUsage"))["usedSize"])


async def memory(browser: Chromium, berth: OpenBerth, minutes: float, rate: float) -> None:
    """Three pages stay open while builds end all the time."""
    async with AsyncExitStack() as stack:
        tabs = {
            name: await stack.enter_async_context(a_tab(browser, berth.url, PAGES[name]))
            for name in ("now", "hosts", "builds")
        }
        until = monotonic() + minutes * 60
        while monotonic() < until:
            ended = await boots_a_second(berth, int(rate * 30), rate)
            used = {name: round(await heap(tab) / 2**20, 2) for name, tab in tabs.items()}
            nodes = {name: await tab.number_of("*") for name, tab in tabs.items()}
            say(minutes_left=round((until - monotonic()) / 60, 1), heap_mb=used, nodes=nodes, rate=ended)


async def ratio(browser: Chromium, berth: OpenBerth, turns: int, count: int) -> None:
    with_it, without = [], []
    for turn in range(turns):
        without.append(await boots_a_second(berth, count, seed=turn))
        async with a_tab(browser, berth.url, "/"):
            with_it.append(await boots_a_second(berth, count, seed=turn))
        say(turn=turn, without=round(without[-1]), with_it=round(with_it[-1]))
    each = [round(a / b, 3) for a, b in zip(with_it, without, strict=True)]
    say(ratio=round(sum(with_it) / sum(without), 3), of=each)


async def paints(browser: Chromium, berth: OpenBerth, times: int = 3) -> None:
    for name, path in PAGES.items():
        found = []
        for _ in range(times):
            async with a_tab(browser, berth.url) as tab:
                tab.expects("404")
                await tab.open(path.format_map(berth.named))
                await tab.still()
                found.append(await tab.evaluate(_FIRST_PAINT))
        say(page=name, first_paint_ms=round(statistics.median(found)), worst=round(max(found)))


_FIRST_PAINT = """new Promise((then) => new PerformanceObserver((list) => {
  const found = list.getEntriesByName("first-contentful-paint")[0];
  if (found) then(found.startTime);
}).observe({ type: "paint", buffered: true }))"""

_WATCH = """window.seenAt = {};
const seen = () => {
  for (const a of document.querySelectorAll("a.mono")) window.seenAt[a.innerText] ??= Date.now();
};
const live = document.querySelector("[data-live]");
new MutationObserver(seen).observe(live, { childList: true, subtree: true });"""


async def updates(browser: Chromium, berth: OpenBerth, times: int = 10) -> None:
    """From when a build's end is heard on the bus until it stands on the page."""
    took = []
    async with a_tab(browser, berth.url, "/builds") as tab:
        await tab.evaluate(_WATCH)
        for _ in range(times):
            request = msgspec.structs.replace(
                boot_request(1, 256, 1, "small", (), 1, "", ""), reply_to=berth.bus.clock.uuid()
            )
            ended = await berth.bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
            await berth.bus.publish(request)
            end = await ended.get()
            heard = time()
            await ended.stop()
            await tab.sees(end.build)
            took.append(float(await tab.evaluate(f"window.seenAt['{end.build}']")) - heard * 1000)
            await asyncio.sleep(1.0)
    say(update_ms=[round(one) for one in took], median=round(statistics.median(took)))


async def frames(browser: Chromium, berth: OpenBerth) -> None:
    """How long each frame takes while the heat map scrolls at its usual size."""
    async with a_tab(browser, berth.url, "/hosts") as tab:
        await tab.sees("room for", "h1")
        took = await tab.evaluate(
            """new Promise((then) => {
                const box = document.getElementById("heat"), took = [];
                let last = performance.now();
                const step = (now) => {
                    took.push(now - last);
                    last = now;
                    box.scrollTop = (took.length * 30) % Math.max(1, box.scrollHeight - box.clientHeight);
                    took.length < 200 ? requestAnimationFrame(step) : then(took.slice(1));
                };
                requestAnimationFrame(step);
            })"""
        )
    say(frame_ms=round(statistics.median(took), 1), p95=round(sorted(took)[int(len(took) * 0.95)], 1))


async def measure(hosts: int, minutes: float, rate: float, turns: int, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="berth-room-bench-") as directory:
        began = monotonic()
        async with a_berth(directory, hosts) as berth, a_chromium() as browser:
            say(hosts=hosts, up_after=round(monotonic() - began))
            await lived_in(berth)
            await paints(browser, berth)
            await updates(browser, berth)
            await frames(browser, berth)
            await memory(browser, berth, minutes, rate)
            await ratio(browser, berth, turns, count)
            await lived_in(berth)
            await paints(browser, berth)
            await updates(browser, berth)


def main() -> None:
    said = argparse.ArgumentParser(prog="make room-bench", description=__doc__)
    said.add_argument("--hosts", type=int, default=10_000)
    said.add_argument("--minutes", type=float, default=10.0, help="that pages stay open")
    said.add_argument("--rate", type=float, default=100.0, help="builds a second meanwhile")
    said.add_argument("--turns", type=int, default=4, help="with the page and without")
    said.add_argument("--builds", type=int, default=5_000, help="of each turn, twice")
    given = said.parse_args()
    asyncio.run(measure(given.hosts, given.minutes, given.rate, given.turns, given.builds))


if __name__ == "__main__":
    main()
