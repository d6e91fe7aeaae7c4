"""`make room-bench`: measures the control room with many hosts and builds, in a browser on the same machine.

It prints the first paint of each page, the time from an event to its update, the frame time while the heat
map scrolls, the browser's memory while pages stay open, and throughput and processor time per boot with and
without an open page, alternating.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from time import monotonic, time

import msgspec

from berth import wiring
from berth.loadtest import Load, LoadPlan
from berth.operations.boot_options import BootOptions, boot_request
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.requests import Flavor
from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium, a_chromium
from tests.support.open_berth import PAGES, OpenBerth, lived_in

SMALL = (Flavor(name="small", vcpus=1, memory_mb=256, disk_gb=1),)


def say(**figures: object) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


@asynccontextmanager
async def a_berth(directory: str, hosts: int) -> AsyncIterator[OpenBerth]:
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
        url, up = "", False
        while not (url and up):
            line = (await process.stdout.readline()).decode()
            assert line, "it has ended"
            up = up or "berth is up" in line
            if "the control room is at " in line:
                url = line.split()[-1]
        settings = Settings().having(state_dir=directory, hosts=hosts)
        async with Bus(wiring.transport(settings, "load")) as bus:
            yield OpenBerth(url, bus, settings, {"pid": str(process.pid)})
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


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


def processor_seconds(process: int) -> float:
    try:
        said = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(said[11]) + int(said[12])) / os.sysconf("SC_CLK_TCK")


def used(berth: OpenBerth) -> dict[str, float]:
    of_berth = _below(int(berth.named["pid"]))
    browser = set(_below(os.getpid())) - {os.getpid(), *of_berth}
    return {
        "berth": sum(map(processor_seconds, of_berth)),
        "browser": sum(map(processor_seconds, browser)),
        "load": processor_seconds(os.getpid()),
    }


def _below(process: int) -> list[int]:
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += [one for child in task.read_text().split() for one in _below(int(child))]
    return found


async def ratio(browser: Chromium, berth: OpenBerth, given: argparse.Namespace) -> None:
    """Boots a second, and the milliseconds of the processor that a boot takes of each, with and without."""

    async def one(seed: int) -> tuple[float, dict[str, float]]:
        await asyncio.sleep(2.0)
        before = used(berth)
        rate = await boots_a_second(berth, given.builds, given.paced, seed=seed)
        after = used(berth)
        return rate, {name: (after[name] - before[name]) * 1000 / given.builds for name in after}

    with_it, without = [], []
    for turn in range(given.turns):
        without.append(await one(turn))
        async with a_tab(browser, berth.url, given.page):
            with_it.append(await one(turn))
        for name, (rate, costs) in (("without", without[-1]), ("with", with_it[-1])):
            say(turn=turn, page=name, rate=round(rate), **{who: round(ms, 2) for who, ms in costs.items()})
    each = [round(a / b, 3) for (a, _), (b, _) in zip(with_it, without, strict=True)]
    say(ratio=round(sum(a for a, _ in with_it) / sum(b for b, _ in without), 3), of=each)
    for who in ("berth", "browser", "load"):
        beside, alone = (statistics.median(costs[who] for _, costs in some) for some in (with_it, without))
        say(of=who, ms_a_boot=round(alone, 3), with_the_page=round(beside, 3), more=round(beside - alone, 3))


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
    took = []
    async with a_tab(browser, berth.url, "/builds") as tab:
        await tab.evaluate(_WATCH)
        for _ in range(times):
            request = msgspec.structs.replace(
                boot_request(BootOptions(vcpus=1, memory_mb=256, disk_gb=1, flavor="small")),
                reply_to=berth.bus.clock.uuid(),
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


async def waits(browser: Chromium, berth: OpenBerth, times: int = 10) -> None:
    took, since_asked = [], []
    alive = await berth.bus.listen(topics.SCHEDULER_ALIVE.at())
    async with a_tab(browser, berth.url, "/waiting") as tab:
        await tab.evaluate(_WATCH.replace("a.mono", "span.mono"))
        for index in range(times):
            request = msgspec.structs.replace(
                boot_request(BootOptions(vcpus=1, memory_mb=256, disk_gb=1, flavor="small", zone="nowhere")),
                wait="1h",
                priority=index,
            )
            known = (await alive.get()).waits  # its sign of life, which comes every second
            asked = time()
            await berth.bus.publish(request)
            while (await alive.get()).waits == known:
                pass
            said = time()
            await tab.sees(request.request)
            seen = float(await tab.evaluate(f"window.seenAt['{request.request}']"))
            took.append(seen - said * 1000)
            since_asked.append(seen - asked * 1000)
            await asyncio.sleep(2.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    while True:
                        await alive.get()
    await alive.stop()
    say(waits_ms=[round(one) for one in took], median=round(statistics.median(took)))
    say(since_asked_ms=[round(one) for one in since_asked], median=round(statistics.median(since_asked)))


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
    def wanted(what: str) -> bool:
        return not given.only or what in given.only

    with tempfile.TemporaryDirectory(prefix="berth-room-bench-") as directory:
        began = monotonic()
        async with a_berth(directory, given.hosts) as berth, a_chromium() as browser:
            say(hosts=given.hosts, up_after=round(monotonic() - began))
            if given.before:
                say(builds=given.before, rate=round(await boots_a_second(berth, given.before)))
            await lived_in(berth)
            if wanted("paints"):
                await paints(browser, berth)
            if wanted("updates"):
                await updates(browser, berth)
                await waits(browser, berth)
            if wanted("frames"):
                await frames(browser, berth)
            if wanted("memory"):
                await memory(browser, berth, given.minutes, given.rate)
            if wanted("ratio"):
                await ratio(browser, berth, given)
            if not given.only:
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
    said.add_argument("--page", default="/", help="that is open in those turns")
    said.add_argument("--paced", type=float, default=0.0, help="builds a second in those; 0: all it can")
    said.add_argument("--before", type=int, default=0, help="builds that there are when it begins")
    said.add_argument("--only", nargs="*", choices=("paints", "updates", "frames", "memory", "ratio"))
    given = said.parse_args()
    asyncio.run(measure(given))


if __name__ == "__main__":
    main()
