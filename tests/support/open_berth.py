"""A berth with a control room on a free loopback port, and the addresses of its pages, for browser tests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from berth.commands.run import ready
from berth.control_room_place import room_url, with_room_address
from berth.kit.boot_options import options_named
from berth.kit.boot_requests import boot_request, parts_given
from berth.services import embedded
from berth.settings import Settings
from berth.worker_roles import metal_agent
from bus import topics
from bus.audit_trail import ActRecord, ActsRecorded, Operator
from bus.delivery.runner import Bus
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.parts import RequestParts
from bus.queries import FindWaiting
from bus.resources import FindProviders
from compute_sim.ironic.simulation import Simulation
from tests.support.envelopes import a_letter
from tests.support.feature_tests import modules_of_tests
from tests.support.waiting import in_time, until


def pages_of_features() -> list[Any]:
    """Return the module about its pages in the tests of each feature that has pages."""
    return [*modules_of_tests("support.pages")]


@dataclass(frozen=True)
class OpenBerth:
    url: str
    bus: Bus
    settings: Settings
    named: dict[str, str] = field(default_factory=dict)  # values of the names in braces in PAGES

    async def boot(self, count: int = 1, **given: Any) -> list[BuildEnded]:
        """Boot instances and return their ends, active or in error."""
        request = a_request(self.bus.clock.uuid(), vcpus=1, flavor="small", count=count, **given)
        ended = await self.bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
        await self.bus.publish(request)
        found = [await in_time(ended.get()) for _ in range(count)]
        await ended.stop()
        return found

    async def boot_too_large(self) -> BuildUnplaceable:
        """Request an instance that is too large for every host."""
        request = a_request(self.bus.clock.uuid(), vcpus=4000, flavor="huge")
        listener = await self.bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=request.reply_to))
        await self.bus.publish(request)
        return await in_time(listener.get())

    async def boot_later(self, *, priority: int = 0, **given: Any) -> str:
        """Request an instance that has to wait for a host, and return the id of the request."""
        request = a_request("", **{"vcpus": 1, "flavor": "small", **given})
        waits = parts_given(RequestParts, wait="2h", priority=priority)
        request = msgspec.structs.replace(request, parts=request.parts.having(*waits))
        await self.bus.publish(request)

        async def is_waiting() -> bool:
            found = await self.bus.asker(topics.WAITING)(FindWaiting(requests=(request.request,)))
            return bool(found.waiting)

        await until(is_waiting, "the request waits for a host")
        return request.request


def a_request(reply_to: str, **options: Any) -> BuildRequested:
    request = boot_request(options_named(memory_mb=512, disk_gb=5, **options))
    return msgspec.structs.replace(request, reply_to=reply_to)


@asynccontextmanager
async def an_open_berth(directory: Path, ironic: Simulation, hosts: int = 20) -> AsyncIterator[OpenBerth]:
    """Run a berth that has data for every page: hosts in two cells, and nodes of an Ironic."""
    made = Settings().having(
        state_dir=str(directory),
        control_room_http="127.0.0.1:0",
        simulator={"hosts": hosts, "build_time": "constant:0.01", "seed": 3, "labels": {"rack": 5}},
        cells=("c1", "c2"),
        ironic_api=ironic.url,
        ironic_cells={"*": "c2"},
    )
    made = with_room_address(made)
    async with embedded(made) as house, asyncio.TaskGroup() as group:
        await ready(house.bus, made)
        stopping = asyncio.Event()
        for pages in pages_of_features():
            for worker in pages.workers():
                group.create_task(house.bus.serve(worker, stopping))
        values = {name: value for pages in pages_of_features() for name, value in pages.VALUES.items()}
        opened = OpenBerth(room_url(made), house.bus, made, values)
        await fill_pages(opened)
        try:
            yield opened
        finally:
            stopping.set()


async def fill_pages(berth: OpenBerth) -> None:
    """Create objects of each type that pages show, and store their ids for the addresses of pages."""
    built = await berth.boot(12)
    refused = await berth.boot_too_large()
    first = next(end for end in built if end.status == "active")
    waits = await berth.boot_later(zone="nowhere", priority=5)
    await berth.boot_later(zone="nowhere")
    await berth.boot_later(vcpus=4000, flavor="huge")
    for pages in pages_of_features():
        if hasattr(pages, "fill"):
            await pages.fill(berth)
    act = ActRecord(
        id=berth.bus.clock.uuid(), at=berth.bus.clock.now(), operator=Operator(name="ann", role="operator"),
        interface="command", through="berth project quota set", origin="desk", act="quota", target="web",
        outcome="denied", detail="quota takes the role admin; ann has operator",
    )  # fmt: skip
    await berth.bus.publish(ActsRecorded(records=(act,)))
    letter = a_letter(body=msgspec.json.encode({"request": refused.request, "instances": []}))
    await berth.bus.transport.store_dead_letter(letter)
    berth.named.update(
        build=first.build, host=first.host, refused=refused.request, letter=letter.id, waits=waits,
    )  # fmt: skip

    async def followed() -> bool:
        question = FindProviders(agents=(metal_agent(berth.settings, berth.settings.metal_cell),))
        return bool((await berth.bus.asker(topics.PROVIDERS)(question)).providers)

    if berth.settings.ironic.is_read:
        await until(followed, "berth believes something of Ironic's nodes")
    async with httpx.AsyncClient(base_url=berth.url, timeout=60) as visitor:

        async def counted() -> bool:
            return "Being counted" not in (await visitor.get("/bus")).text

        await until(counted, "the Bus page has been counted once: from then on it waits for that")


PAGES = {
    "now": "/",
    "hosts": "/hosts",
    "host-table": "/host-table",
    "host": "/hosts/{host}",
    "instances": "/instances",
    "builds": "/builds",
    "metal": "/metal?wait=1",
    "bus": "/bus",
    "dead-letters": "/bus/dead",
    "dead-letter": "/bus/letter?id={letter}",
    "audit": "/audit",
    "builds-failed": "/builds?failed=1",
    "build": "/builds/{build}",
    "build-again": "/builds/{build}?then=again",
    "build-refused": "/builds/{refused}",
    **{name: page for pages in pages_of_features() for name, page in pages.PAGES.items()},
    "sign-in": "/login",
    "nowhere": "/nowhere",
}
WIDTHS = (1280, NARROW := 390)
SCHEMES = ("light", "dark")
