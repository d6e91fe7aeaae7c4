"""Runs a load test of concurrent boots for `berth demo` and `berth load`; draws their latencies as SVG."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, StrictUndefined

from berth.kit.publishing import publish
from berth.load_stages import LoadStage, Stages, due, planned
from bus import topics
from bus.clock import monotonic
from bus.delivery.runner import Bus, Listener
from bus.messages import (
    BuildCancelRequested,
    BuildDeleteRequested,
    BuildEnded,
    BuildRequested,
    BuildUnplaceable,
)
from bus.requests import Flavor
from bus.vocabulary import UNSAID_ID, portions
from control_room.kit.charts import rounded_up

_CHUNK = 128  # most requests that are published together
MIX = 20  # flavors in a load by default
MOST_MIXED = 1000


def mixed(flavors: int) -> tuple[Flavor, ...]:
    """Return `flavors` different flavors with 1 to 8 VCPUs, 512 MB to 4 GB for each VCPU, and some disk."""
    made = []
    for index in range(flavors):
        size, quarter = index % 4, index // 4
        memory, disk, again = quarter % 4, quarter // 4 % 4, quarter // 16
        vcpus = 1 << size
        made.append(
            Flavor(
                name=f"mix-{index + 1}",
                vcpus=vcpus,
                memory_mb=512 * vcpus * (1 << memory) + 16 * again,
                disk_gb=1 + 5 * disk,
            )
        )
    return tuple(made)


@dataclass(frozen=True)
class LoadPlan:
    """The boots of a load test: number, rate and flavors."""

    boots: int
    rate: float = 0.0  # boots a second; 0: as fast as the window allows
    window: int = 2000  # largest number of boots in progress, if no rate is given
    flavors: tuple[Flavor, ...] = field(default_factory=lambda: mixed(MIX))  # each boot gets one at random
    seed: int = 1  # seed of the random choice
    zone: str = ""
    project: str = UNSAID_ID
    patience: float = 60.0  # seconds without an ended boot until the load fails
    given: tuple[LoadStage, ...] = ()  # stages with their own rates; `boots` is then their sum

    @property
    def stages(self) -> Stages:
        """Return the stages: those given, or one with the rate; none without a rate."""
        if self.given or not self.rate:
            return self.given
        return (LoadStage(self.rate, self.boots / self.rate),)


class Boot(msgspec.Struct):
    """A boot of a load test, as its client observed it. Times are seconds since the load began."""

    asked: float
    late: float = 0.0  # seconds between the planned time of the request and `asked`
    stage: int = 0
    ended: float = 0.0
    status: str = "lost"
    host: str = ""
    cell: str = ""
    attempts: int = 0
    reason: str = ""
    ends: int = 0  # number of different ends; a repeated message does not count
    changed: bool = False  # two different ends were received, which violates a guarantee

    @property
    def latency(self) -> float:
        return self.ended - self.asked


@dataclass
class LoadOutcome:
    """The result of a load test."""

    boots: dict[str, Boot]
    seconds: float
    stages: Stages = ()

    @property
    def statuses(self) -> Counter[str]:
        return Counter(boot.status for boot in self.boots.values())

    @property
    def attempts(self) -> Counter[int]:
        return Counter(boot.attempts for boot in self.boots.values() if boot.attempts)

    @property
    def lost(self) -> int:
        """Return the number of boots without an end."""
        return self.statuses["lost"]

    @property
    def failed(self) -> int:
        """Return the number of boots that ended without an active instance."""
        return len(self.boots) - self.statuses["active"] - self.lost

    @property
    def changed(self) -> int:
        """Return the number of boots with two different ends, each of which violates a guarantee."""
        return sum(boot.changed for boot in self.boots.values())

    @property
    def per_second(self) -> float:
        """Return ended boots a second."""
        return (len(self.boots) - self.lost) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """Return the time that this share of the ended boots needed at most."""
        return percentile([boot.latency for boot in self.boots.values() if boot.ended], share)

    @property
    def behind(self) -> float:
        """Return the greatest delay of a request behind its planned time: the load generator was too slow."""
        return max((boot.late for boot in self.boots.values()), default=0.0)

    def of_stages(self) -> list[dict[str, Any]]:
        """Return the results by stage, if there are several."""
        found = []
        for number, stage in enumerate(self.stages if len(self.stages) > 1 else ()):
            boots = [boot for boot in self.boots.values() if boot.stage == number]
            times = [boot.latency for boot in boots if boot.ended]
            found.append({
                "stage": str(stage),
                "boots": len(boots),
                "active": sum(boot.status == "active" for boot in boots),
                "latency_ms": {
                    name: round(percentile(times, share) * 1000, 1)
                    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
                },
            })  # fmt: skip
        return found

    def reasons(self, most: int = 5) -> list[tuple[str, int]]:
        """Return the most frequent reasons of failed boots, with their numbers."""
        return Counter(b.reason for b in self.boots.values() if b.reason).most_common(most)

    def summary(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "boots": len(self.boots),
            "seconds": round(self.seconds, 3),
            "boots_per_second": round(self.per_second, 1),
            "ended": dict(self.statuses),
            "attempts": {str(number): count for number, count in sorted(self.attempts.items())},
            "latency_ms": {
                name: round(self.percentile(share) * 1000, 1)
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
            },
            "late_ms": round(self.behind * 1000, 1),
            "stages": self.of_stages(),
            "ended_more_than_once": sum(boot.ends > 1 for boot in self.boots.values()),
            "ended_two_ways": self.changed,
            "reasons": dict(self.reasons()),
        }


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


class Load:
    """Runs a load test; its attribute `boots` has the state of each boot, and may be read during the test."""

    def __init__(self, bus: Bus, plan: LoadPlan) -> None:
        self.bus = bus
        self.plan = plan
        self.boots: dict[str, Boot] = {}
        self.open = 0
        self.name = f"load-{bus.clock.uuid()[:8]}"  # of its instances, and where their ends are published
        self._chance = random.Random(plan.seed)
        self._stages = plan.stages
        self._has_slot = asyncio.Event()
        self._ended = asyncio.Event()
        self._began = 0.0
        self._last_end = 0.0

    @property
    def ended(self) -> int:
        return len(self.boots) - self.open

    def now(self) -> float:
        return monotonic() - self._began

    async def run(self, progress: Callable[["Load"], None] = lambda load: None) -> LoadOutcome:
        """Send the planned requests and wait for all ends or the time limit; return the result."""
        ended = await self.bus.listen(topics.BUILD_ENDED.at(reply_to=self.name), 5000)
        unplaceable = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=self.name), 5000)
        self._began = monotonic()
        async with asyncio.TaskGroup() as group:
            working = [
                group.create_task(self._on_ended(ended)),
                group.create_task(self._on_unplaceable(unplaceable)),
                group.create_task(self._watch(progress)),
                group.create_task(self._publish_requests()),  # may wait forever for capacity or the broker
            ]
            await self._ended.wait()
            for task in working:
                task.cancel()
        await ended.stop()
        await unplaceable.stop()
        seconds = max((boot.ended for boot in self.boots.values()), default=0.0)
        return LoadOutcome(self.boots, seconds, self._stages)

    async def delete(self) -> int:
        """Delete all instances of the load, and cancel boots that have not ended. Return the number of
        instances whose deletion no cell reported within `patience` seconds since the last report.
        """
        left = {build: boot.cell for build, boot in self.boots.items() if boot.cell}
        lost = [build for build, boot in self.boots.items() if not boot.ended]
        deleted = await self.bus.listen(topics.BUILD_DELETED.at(reply_to=self.name), 5000)
        for builds in portions(lost, _CHUNK):
            await publish(self.bus, *(BuildCancelRequested(build=build, anywhere=True) for build in builds))
        for builds in portions(left, _CHUNK):
            orders = (
                BuildDeleteRequested(build=build, cell=left[build], reply_to=self.name) for build in builds
            )
            await publish(self.bus, *orders)
        try:
            while left:
                async with asyncio.timeout(self.plan.patience):
                    left.pop((await deleted.get()).build, None)
        except TimeoutError:
            pass
        await deleted.stop()
        return len(left)

    async def _publish_requests(self) -> None:
        """Publish a load test's build requests, at a fixed rate or with a fixed number in progress."""
        stages = self._stages
        while (left := self.plan.boots - len(self.boots)) > 0:
            if stages:
                count = min(due(stages, self.now()) - len(self.boots), left, _CHUNK)
                if count <= 0:
                    await asyncio.sleep(0.005)
                    continue
            else:
                count = min(self.plan.window - self.open, left, _CHUNK)
                if count < min(_CHUNK, left, self.plan.window) and self.open:
                    self._has_slot.clear()
                    await self._has_slot.wait()
                    continue
            await self._publish(count)

    async def _publish(self, count: int) -> None:
        requests = []
        for _ in range(count):
            build = self.bus.clock.uuid()
            requests.append(
                BuildRequested(
                    request=build,
                    instances=(build,),
                    flavor=self._chance.choice(self.plan.flavors),
                    zone=self.plan.zone,
                    project=self.plan.project,
                    reply_to=self.name,
                    name=self.name,
                )
            )
            self.boots[build] = self._begun(len(self.boots))
        self.open += count
        await self._send(requests)

    def _begun(self, number: int) -> Boot:
        now = self.now()
        if not self._stages:
            return Boot(asked=now)
        at, stage = planned(self._stages, number)
        return Boot(asked=now, late=max(now - at, 0.0), stage=stage)

    async def _send(self, requests: Sequence[BuildRequested]) -> None:
        await publish(self.bus, *requests)

    async def _on_ended(self, listener: Listener[BuildEnded]) -> None:
        while True:
            end = await listener.get()
            self._end(end.build, end.status, end.host, end.reason, len(end.attempts), end.cell)

    async def _on_unplaceable(self, listener: Listener[BuildUnplaceable]) -> None:
        while True:
            end = await listener.get()
            for build in end.instances:
                self._end(build, "unplaceable", "", end.reason, 0)

    def _end(self, build: str, status: str, host: str, reason: str, attempts: int, cell: str = "") -> None:
        if (boot := self.boots.get(build)) is None:
            return
        boot.ends += 1
        if boot.ends > 1:
            boot.changed |= (boot.status, boot.host) != (status, host)
            return
        boot.ended, boot.status, boot.host, boot.cell = self.now(), status, host, cell
        boot.reason, boot.attempts = reason, attempts
        self._last_end = boot.ended
        self.open -= 1
        self._has_slot.set()
        if len(self.boots) == self.plan.boots and not self.open:
            self._ended.set()

    async def _watch(self, progress: Callable[["Load"], None]) -> None:
        while True:
            progress(self)
            await asyncio.sleep(0.2)
            if self.now() - max(self._last_end, 0.0) > self.plan.patience:
                self._ended.set()


_LINES = ((0.5, "p50", "#1b7837"), (0.95, "p95", "#e08214"), (0.99, "p99", "#b2182b"))
_MOST_DOTS = 4000
_PICTURE = Path(__file__).with_name("latency.svg.jinja")


def latency_svg(result: LoadOutcome, title: str) -> str:
    """Return an SVG picture of a load test over time: latencies, and the number of boots ended per second."""
    ended = sorted((b.ended, b.latency * 1000) for b in result.boots.values() if b.ended)
    width = max(ended[-1][0], 0.001) if ended else 1.0
    bins: list[list[float]] = [[] for _ in range(max(4, min(60, len(ended) // 40)))]
    for seconds, latency in ended:
        bins[min(int(seconds / width * len(bins)), len(bins) - 1)].append(latency)
    speeds = [len(latencies) / (width / len(bins)) for latencies in bins]
    lines = [
        {
            "name": name,
            "colour": colour,
            "overall": result.percentile(share) * 1000,
            "points": [(at + 0.5, percentile(bin_, share)) for at, bin_ in enumerate(bins) if bin_],
        }
        for share, name, colour in _LINES
    ]
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_PICTURE.read_text())
    return template.render(
        title=title,
        width=width,  # in seconds
        height=rounded_up(max((latency for _, latency in ended), default=0.0)),  # in milliseconds
        speeds=speeds,
        busiest=rounded_up(max(speeds)),
        dots=ended[:: max(1, len(ended) // _MOST_DOTS)],
        lines=lines,
    )


_REPORT = Path(__file__).with_name("load_report.html.jinja")


def load_report(result: LoadOutcome, title: str, broken: Sequence[str]) -> str:
    """Return an HTML page with the results of a load test. `broken`: the limits that it broke."""
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_REPORT.read_text())
    return template.render(
        title=title, summary=result.summary(), picture=latency_svg(result, title), broken=broken
    )
