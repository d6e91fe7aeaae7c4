"""Publishes build requests, and follows them to their ends."""

import asyncio
from typing import Protocol

from berth.operations.publishing import PATIENCE, publish
from bus import topics
from bus.delivery.runner import Bus, Listener
from bus.errors import AnswerRefused, OperationRefused, Unavailable
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import FindBuilds, FindWaiting, WaitingRequest

SECONDS = 5.0  # for the cell's answer about a decision
_LOOK_SECONDS = 1.0  # between two checks of a waiting request


class BootListener(Protocol):
    """Receives the progress of a build request."""

    async def ended(self, said: BuildEnded) -> None: ...

    def unplaceable(self, said: BuildUnplaceable) -> None: ...

    def waits(self, said: WaitingRequest) -> None: ...


async def follow_boot(bus: Bus, request: BuildRequested, timeout: float, listener: BootListener) -> int:
    """Publish the request, and return how many of its instances became active. Raise OperationRefused if
    some have not ended in time.
    """
    ends = await bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
    unplaceable = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=request.reply_to))
    received: asyncio.Queue[BuildEnded | BuildUnplaceable] = asyncio.Queue()
    await publish(bus, request, patience=min(timeout, PATIENCE))
    active, open_ = 0, set(request.instances)
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_receive(ends, received)),
                group.create_task(_receive(unplaceable, received)),
                group.create_task(_report_waits(bus, request, listener)),
            ]
            while open_:
                said = await received.get()
                if isinstance(said, BuildUnplaceable):
                    open_ -= set(said.instances)
                    listener.unplaceable(said)
                elif said.build in open_:
                    open_.discard(said.build)
                    active += said.status == "active"
                    await listener.ended(said)
            for task in tasks:
                task.cancel()
    except TimeoutError:
        raise OperationRefused(
            f"not waiting any longer: {', '.join(sorted(open_))} did not end within {timeout:g} s"
        ) from None
    return active


async def _receive(
    listener: Listener[BuildEnded] | Listener[BuildUnplaceable],
    received: "asyncio.Queue[BuildEnded | BuildUnplaceable]",
) -> None:
    while True:
        received.put_nowait(await listener.get())


async def _report_waits(bus: Bus, request: BuildRequested, listener: BootListener) -> None:
    """Report the position of a waiting request until cancelled."""
    while request.wait:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            found = await bus.asker(topics.WAITING)(FindWaiting(requests=(request.request,)))
        except (Unavailable, AnswerRefused):
            continue
        for one in found.waiting:
            listener.waits(one)


async def notes_of(bus: Bus, ended: BuildEnded) -> list[str]:
    """Return the notes of the build's decision from its cell: parts of the request without effect."""
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    found = await find(FindBuilds(cell=ended.cell, builds=(ended.build,)))
    return [note for build in found.builds for note in build.placed.decision.notes]
