"""Publishes a build request and follows it to its results."""

import asyncio
from typing import Protocol

from berth.kit.publishing import PUBLISH_SECONDS, each_message, publish
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, OperationRefused, Unavailable
from bus.messages import BuildConflict, BuildEnded, BuildRequested, BuildUnplaceable
from bus.queries import FindBuilds, FindWaiting, WaitingRequest

SECONDS = 5.0  # time limit for the cell's answer about a decision


_POLL_SECONDS = 1.0  # between two checks of a waiting request


class BootListener(Protocol):
    """The interface of an object that receives a build request's progress: waiting, unplaceable, ended."""

    async def ended(self, build_ended: BuildEnded) -> None:
        """Receive the end of a build."""

    def unplaceable(self, refusal: BuildUnplaceable) -> None:
        """Receive the refusal of a request."""

    def waits(self, waiting: WaitingRequest) -> None:
        """Receive the report that a request waits for capacity."""


async def follow_boot(bus: Bus, request: BuildRequested, timeout: float, listener: BootListener) -> int:
    """Publish a build request, report its progress to `listener` until all builds have ended, and return how
    many became active.
    """
    ends = await bus.listen(topics.BUILD_ENDED.at(reply_to=request.reply_to))
    unplaceable = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=request.reply_to))
    conflicts = await bus.listen(topics.BUILD_CONFLICT.at(reply_to=request.reply_to))
    received: asyncio.Queue[BuildEnded | BuildUnplaceable | BuildConflict] = asyncio.Queue()
    await publish(bus, request, patience=min(timeout, PUBLISH_SECONDS))
    active, open_, conflict = 0, set(request.instances), ""
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(each_message(ends, received.put_nowait)),
                group.create_task(each_message(unplaceable, received.put_nowait)),
                group.create_task(each_message(conflicts, received.put_nowait)),
                group.create_task(_report_waits(bus, request, listener)),
            ]
            while open_ and not conflict:
                message = await received.get()
                if isinstance(message, BuildConflict):
                    conflict = message.reason
                elif isinstance(message, BuildUnplaceable):
                    open_ -= set(message.instances)
                    listener.unplaceable(message)
                elif message.build in open_:
                    open_.discard(message.build)
                    active += message.status == "active"
                    await listener.ended(message)
            for task in tasks:
                task.cancel()
    except TimeoutError:
        raise OperationRefused(
            f"not waiting any longer: {', '.join(sorted(open_))} did not end within {timeout:g} s"
        ) from None
    if conflict:
        raise OperationRefused(conflict)
    return active


async def _report_waits(bus: Bus, request: BuildRequested, listener: BootListener) -> None:
    """Report the queue position of a waiting request to the listener, repeatedly until cancelled."""
    while request.parts.waits.longest:
        await asyncio.sleep(_POLL_SECONDS)
        try:
            found = await bus.asker(topics.WAITING)(FindWaiting(requests=(request.request,)))
        except (Unavailable, AnswerRefused):
            continue
        for waiting in found.waiting:
            listener.waits(waiting)


async def notes_of(bus: Bus, ended: BuildEnded) -> list[str]:
    """Return the notes in an ended build's decision record about ignored parts of the request."""
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    found = await find(FindBuilds(cell=ended.cell, builds=(ended.build,)))
    return [note for build in found.builds for note in build.placed.decision.notes]
