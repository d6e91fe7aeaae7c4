"""`make room-bench`: measures the control room with many hosts and builds, in a browser on the same machine.

It prints the first paint of each page, the time from an event to its update, the frame time while the heat
map scrolls, the browser's memory while pages stay open, and boots per second with and without an open page,
alternating.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import monotonic, time

from berth import composition
from berth.loadtest import Load, LoadPlan
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import SchedulerAlive
from bus.requests import Flavor
from tests.support.berth_processes import Up
from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium, a_chromium
from tests.support.open_berth import PAGES, OpenBerth, a_request, fill_pages
from tests.support.request_parts import changed

SMALL = (Flavor(name="small", vcpus=1, memory_mb=256, disk_gb=1),)


def say(**figures: object) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def a_berth(directory: str, hosts: int) -> AsyncIterator[OpenBerth]:
    state = str(Path(directory) / ".berth")
    flags = ("--hosts", str(hosts), "--cells", "4", "--state-dir", state, "--build-time", "exponential:0.1")
    with Up(Path(directory), {}, *flags) as up:
        (url,) = re.findall(r"the control room is at (\S+)", up.log)
        settings = Settings().having(state_dir=state, simulator={"hosts": hosts})
        async with Bus(composition.transport(settings, "load")) as bus:
            yield OpenBerth(url, bus, settings)


async def boots_a_second(berth: OpenBerth, count: int, rate: float = 0.0, seed: int = 1) -> float:
    plan = LoadPlan(boots=count, rate=rate, window=500, flavors=SMALL, seed=seed, patience=300.0)
    return (await Load(berth.bus, plan).run()).per_second


async def heap(tab: Tab) -> int:
    """Return the used bytes after a garbage collection."""
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


async def ratio(browser: Chromium, berth: OpenBerth, given: argparse.Namespace) -> None:
    """Boots a second with an open page and without."""
    with_it, without = list[float](), list[float]()
    for turn in range(given.turns):
        without.append(await boots_a_second(berth, given.builds, given.paced, seed=turn))
        async with a_tab(browser, berth.url, given.page):
            with_it.append(await boots_a_second(berth, given.builds, given.paced, seed=turn))
        say(turn=turn, without=round(without[-1]), with_the_page=round(with_it[-1]))
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
  for (const a of document.querySelectorAll(".mono")) window.seenAt[a.innerText] ??= Date.now();
};
const live = document.querySelector("[data-live]");
new MutationObserver(seen).observe(live, { childList: true, subtree: true });"""


async def updates(browser: Chromium, berth: OpenBerth, times: int = 10) -> None:
    """Milliseconds from the end of a build to its row in the open list."""
    took = []
    async with a_tab(browser, berth.url, "/builds") as tab:
        await tab.evaluate(_WATCH)
        for _ in range(times):
            (end,) = await berth.boot()
            ended = time()
            await tab.sees(end.build)
            took.append(float(await tab.evaluate(f"window.seenAt['{end.build}']")) - ended * 1000)
            await asyncio.sleep(1.0)
    say(update_ms=[round(ms) for ms in took], median=round(statistics.median(took)))


async def waits(browser: Chromium, berth: OpenBerth, times: int = 10) -> None:
    """Milliseconds from the scheduler's report of a waiting request to its row in the open list."""
    took = []
    async with a_tab(browser, berth.url, "/waiting") as tab:
        await tab.evaluate(_WATCH)
        for _ in range(times):
            request = a_request("", vcpus=1, flavor="small", zone="nowhere")
            alive = await berth.bus.listen(topics.SCHEDULER_ALIVE.at())
            known: SchedulerAlive = await alive.get()
            await berth.bus.publish(changed(request, wait="1h"))
            while (await alive.get()).waits == known.waits:
                pass
            reported = time()
            await alive.stop()
            await tab.sees(request.request)
            took.append(float(await tab.evaluate(f"window.seenAt['{request.request}']")) - reported * 1000)
            await asyncio.sleep(2.0)
    say(waits_ms=[round(ms) for ms in took], median=round(statistics.median(took)))


async def frames(browser: Chromium, berth: OpenBerth) -> None:
    async with a_tab(browser, berth.url, "/hosts") as tab:
        await tab.sees("capacity for", "h1")
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


async def measure(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="berth-room-bench-") as directory:
        async with a_berth(directory, given.hosts) as berth, a_chromium() as browser:
            if given.before:
                say(builds=given.before, rate=round(await boots_a_second(berth, given.before)))
            await fill_pages(berth)
            if "paints" in given.only:
                await paints(browser, berth)
            if "updates" in given.only:
                await updates(browser, berth)
                await waits(browser, berth)
            if "frames" in given.only:
                await frames(browser, berth)
            if "memory" in given.only:
                await memory(browser, berth, given.minutes, given.rate)
            if "ratio" in given.only:
                await ratio(browser, berth, given)


def main() -> None:
    reply = argparse.ArgumentParser(prog="make room-bench", description=__doc__)
    every = ("paints", "updates", "frames", "memory", "ratio")
    reply.add_argument("--hosts", type=int, default=10_000)
    reply.add_argument("--minutes", type=float, default=10.0, help="that pages stay open")
    reply.add_argument("--rate", type=float, default=100.0, help="builds a second meanwhile")
    reply.add_argument("--turns", type=int, default=4, help="with the page and without")
    reply.add_argument("--builds", type=int, default=5_000, help="of each turn, twice")
    reply.add_argument("--page", default="/", help="that is open in those turns")
    reply.add_argument("--paced", type=float, default=0.0, help="builds a second in those; 0: all it can")
    reply.add_argument("--before", type=int, default=0, help="builds that there are when it begins")
    reply.add_argument("--only", nargs="*", choices=every, default=every)
    asyncio.run(measure(reply.parse_args()))


if __name__ == "__main__":
    main()
