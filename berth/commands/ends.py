"""Reads ended builds from the cells' records, and publishes their ends again."""

from collections.abc import Sequence
from typing import get_args

from msgspec import structs

from berth.kit.builds import instance_pages, refused_builds
from berth.kit.cells import ask_cells, chosen_cells
from berth.kit.publishing import checked
from berth.kit.terminal import Cli
from berth.kit.times import seconds_since
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.decisions import FindRefused, RefusedBuild
from bus.delivery.runner import Bus
from bus.queries import FindBuilds, FindDecision, FindInstances, Instance, InstanceStatus
from bus.vocabulary import portions

_BUILDS = 100  # in one query
_ENDED: tuple[InstanceStatus, ...] = tuple(
    status for status in get_args(InstanceStatus) if status not in ("building", "swapping")
)


async def ended_builds(
    cli: Cli, since: str, reply_to: str, cells: Sequence[str], *, publish: bool
) -> tuple[list[Instance | RefusedBuild], Sequence[str]]:
    """Return builds that ended recently, from the records of their cells and of the schedulers, and the cells
    that did not answer. With `publish`, let these publish the ends again.
    """
    seconds = seconds_since(since)
    if publish and seconds > cli.settings.keep.ended / 2:
        raise BadSetting(f"--since {since}: with --publish at most half of keep; older builds are deleted")
    start = Clock().now() - seconds
    question = checked(FindInstances(cell="any", statuses=_ENDED, since=start, reply_to=reply_to))
    found: list[Instance | RefusedBuild] = []
    async with cli.bus("ends") as bus:

        async def ask(name: str) -> bool:
            async for page in instance_pages(bus, structs.replace(question, cell=name)):
                found.extend(page.instances)
                if publish:
                    await _repeat_ends(bus, name, page.instances)
            return True

        _, silent = await ask_cells(await chosen_cells(bus, cli.settings, cells), ask)
        found.sort(key=lambda instance: (getattr(instance, "cell", ""), instance.build))
        if not cells:
            refused = await refused_builds(bus, FindRefused(since=start, reply_to=reply_to))
            if publish:
                await _repeat_requests(bus, refused)
            found.extend(refused)
    return found, sorted(silent)


async def _repeat_ends(bus: Bus, cell: str, ended: tuple[Instance, ...]) -> None:
    """Publish the `build.placed` messages of builds to their cell again; the cell then repeats the ends."""
    ask = bus.asker(topics.FIND_BUILDS)
    for some in portions(ended, _BUILDS):
        answer = await ask(FindBuilds(cell=cell, builds=tuple(instance.build for instance in some)))
        await bus.publish(*(stands.placed for stands in answer.builds))


async def _repeat_requests(bus: Bus, refused: list[RefusedBuild]) -> None:
    """Publish again the requests of refused builds, so that a scheduler repeats their stored ends."""
    ask = bus.asker(topics.DECISION)
    for build in {build.request: build.build for build in refused}.values():
        decision = await ask(FindDecision(id=build))
        if decision.request is not None:
            await bus.publish(decision.request)
