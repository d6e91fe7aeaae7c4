"""Deletes a build, wherever it is: waiting, placed, or built."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from berth.kit.cells import ask_cells, cells_text, known_cells
from berth.kit.publishing import PUBLISH_SECONDS, checked, publish, within_seconds
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused
from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleteRequested
from bus.queries import BuildStands, FindBuilds, FindWaiting, WaitingRequest
from bus.resources import FindAllocations, FindProviders
from bus.vocabulary import Message

T = TypeVar("T")


SECONDS = 5.0  # time limit for a cell's answer


_POLL_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Deleted:
    """The result of deleting a build; if the build never had a host, `why` is the scheduler's explanation."""

    build: str
    cell: str = ""
    why: str = ""
    by_scheduler: bool = False  # the scheduler forwarded the deletion to the cell


@dataclass(frozen=True, kw_only=True)
class DeleteOptions:
    """Options of the deletion of a build."""

    cell: str = ""
    wait: bool = False  # wait until the build has no allocations
    fence: bool = False  # also delete an id without a build, so that no later request can use it
    timeout: float = 600.0


async def delete_build(
    bus: Bus, settings: Settings, build: str, options: DeleteOptions, note: Callable[[str], None]
) -> list[Deleted]:
    """Delete a build, or cancel its waiting request; if no cell has a record of the build, call `note` with
    the names of the cells that do not answer.
    """
    deletion, cell, silent = _Deletion(bus, build, options), options.cell, list[str]()
    if not cell:
        cell, _, silent = await _place_of(bus, settings, build, options)
    return await (deletion.by_its_cell(cell) if cell else deletion.by_the_scheduler(silent, note))


async def _place_of(
    bus: Bus, settings: Settings, build: str, options: DeleteOptions
) -> tuple[str, BuildStands | None, list[str]]:
    """Return the cell that has a build ("": none), its record there, and the cells that do not answer."""
    find = bus.asker(topics.FIND_BUILDS, timeout=min(options.timeout, SECONDS))
    cells = (options.cell,) if options.cell else await known_cells(bus, settings)
    found, silent = await ask_cells(cells, lambda cell: find(FindBuilds(cell=cell, builds=(build,))))
    records = {cell: answer.builds[0] for cell, answer in found.items() if answer.builds}
    # after lost commits an ended record of the build can be in another cell
    cell = min(records, key=lambda cell: records[cell].status in ("deleted", "error"), default="")
    return cell, records.get(cell), silent


@dataclass(frozen=True, kw_only=True)
class SupposedDeletion:
    """The supposed deletion of a build or waiting request, as a sentence, and what the build holds."""

    build: str
    says: str
    cell: str = ""
    status: str = ""
    holds: str = ""


async def suppose_deletion(
    bus: RecordingBus, settings: Settings, build: str, options: DeleteOptions
) -> SupposedDeletion:
    """Return what `delete_build` would do; raise OperationRefused if it would be refused."""
    cell, stands, silent = await _place_of(bus, settings, build, options)
    if stands is not None:
        await bus.rehearse(BuildDeleteRequested(build=build, cell=cell))
        holds, where = await _held(bus, build), f"{stands.host} in cell {cell}" if stands.host else cell
        says = f"would be deleted: it is {stands.status} on {where}, and holds {holds or 'nothing'}"
        if stands.status == "deleted" and not holds:
            says = f"is deleted already, by cell {cell}"
        return SupposedDeletion(build=build, says=says, cell=cell, status=stands.status, holds=holds)
    await bus.rehearse(BuildCancelRequested(build=build, anywhere=True, fence=options.fence))
    no_answer = f" ({cells_text(silent)} did not answer)" if silent else ""
    if (waiting := await _waits(bus, build)) is not None:
        says = f"would not wait any more: {waiting.instances} of {waiting.flavor}{no_answer}"
        return SupposedDeletion(build=build, says=says, status="waiting")
    if holds := await _held(bus, build):
        return SupposedDeletion(
            build=build, says=f"would be deleted by a scheduler: it holds {holds}{no_answer}", holds=holds
        )
    if options.fence:
        return SupposedDeletion(
            build=build, says=f"a later request with this id would get no host{no_answer}"
        )
    raise OperationRefused(f"{build}: no build or waiting request has this id{no_answer}")


async def _waits(bus: Bus, build: str) -> WaitingRequest | None:
    try:
        waiting = (await bus.asker(topics.WAITING)(FindWaiting(requests=(build,)))).waiting
    except UNANSWERED:
        return None
    return next((each for each in waiting if not each.move), None)


@dataclass
class _Deletion:
    bus: Bus
    id: str
    options: DeleteOptions
    reply_to: str = field(default_factory=lambda: f"delete-{Clock().uuid()[:8]}")

    async def by_its_cell(self, cell: str) -> list[Deleted]:
        answers = await self.bus.listen(topics.BUILD_DELETED.at(reply_to=self.reply_to))
        await self._publish(BuildDeleteRequested(build=self.id, cell=cell, reply_to=self.reply_to))
        if self.options.wait:
            answer = await self._within(answers.get(), self.id)
            held = await _held(self.bus, self.id)
            if not answer.known:
                raise OperationRefused(
                    f"{self.id} is no build of cell {cell}{f': it holds {held}' if held else ''}"
                )
            if held:
                raise OperationRefused(f"{self.id} is down, and yet it holds {held}")
        return [Deleted(build=self.id, cell=cell)]

    async def by_the_scheduler(self, silent: Sequence[str], note: Callable[[str], None]) -> list[Deleted]:
        """Ask the scheduler to cancel a build that no cell knows; call `note` about the `silent` cells."""
        answers = await self.bus.listen(topics.BUILD_CANCELLED.at(reply_to=self.reply_to))
        fence = self.options.fence
        await self._publish(
            BuildCancelRequested(build=self.id, reply_to=self.reply_to, anywhere=True, fence=fence)
        )
        answer = await within_seconds(
            self.options.timeout,
            answers.get(),
            f"no scheduler answered within {self.options.timeout:g} s about {self.id};"
            " a scheduler that starts later will still delete it",
        )
        if answer.passed_on:
            return await self._forwarded(answer)
        if silent:
            note(f"did not answer: {cells_text(silent)}")
        if not answer.known and not fence:
            raise OperationRefused(
                f"{self.id}: {answer.why}. If its request is not handled yet, --fence prevents a host for it"
            )
        if not answer.waited and answer.known and (held := await _held(self.bus, self.id)):
            raise OperationRefused(f"{self.id} {answer.why}: {held}")
        return [Deleted(build=self.id, why=answer.why)]

    async def _forwarded(self, answer: BuildCancelled) -> list[Deleted]:
        """Return the results of the deletions that the scheduler forwarded to the builds' cells.

        With --wait, return when placement has no allocations for the builds.
        """
        for build in answer.passed_on if self.options.wait else ():
            await self._within(self._until_nothing_is_held(build), build)
        return [
            Deleted(build=build, cell=cell, by_scheduler=True) for build, cell in answer.passed_on.items()
        ]

    async def _until_nothing_is_held(self, build: str) -> None:
        while await _held(self.bus, build):
            await asyncio.sleep(_POLL_SECONDS)

    async def _publish(self, message: Message) -> None:
        await publish(self.bus, checked(message), patience=min(self.options.timeout, PUBLISH_SECONDS))

    async def _within(self, work: Awaitable[T], build: str) -> T:
        seconds = self.options.timeout
        return await within_seconds(
            seconds, work, f"not waiting any longer: {build} was not deleted within {seconds:g} s"
        )


async def _held(bus: Bus, consumer: str) -> str:
    """Return a text with the consumer's present allocations in placement; empty without allocations."""
    found = await bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=(consumer,)))
    if not found.consumers:
        return ""
    allocations = found.consumers[0].allocations
    question = FindProviders(ids=tuple(allocations), parts=("owner",))
    places = {provider.id: provider for provider in (await bus.asker(topics.PROVIDERS)(question)).providers}
    reasons = []
    for provider, amounts in allocations.items():
        place = places.get(provider)
        where = (place.host or place.name) if place is not None else provider
        cell = f" in cell {place.cell}" if place is not None and place.cell else ""
        reasons.append(
            f"{', '.join(f'{amount} {name}' for name, amount in amounts.items())} on {where}{cell}"
        )
    if found.consumers[0].client:
        reasons.append(
            "a client of the API claimed it: an imported instance is a build after `berth instance adopt`"
        )
    return "; ".join(reasons)
