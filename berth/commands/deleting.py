"""`berth delete`: take a build down, wherever it is by now."""

import asyncio
import uuid
from collections.abc import Awaitable, Sequence
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from berth import wiring
from berth.commands.asking_cells import ask_cells, known_cells, named
from berth.commands.options import Json, StateDir
from berth.commands.terminal import CommandRefused, checked, complain, effective, printable, run, say, tell
from berth.publishing import PATIENCE, publish
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import BuildCancelled, BuildCancelRequested, BuildDeleted, BuildDeleteRequested
from bus.queries import FindBuilds
from bus.resources import FindAllocations, FindProviders
from bus.vocabulary import Message

T = TypeVar("T")

SECONDS = 5.0  # for a cell's answer
_LOOK_SECONDS = 0.2

commands = typer.Typer()


@commands.command("delete")
def delete_command(
    build: Annotated[str, typer.Argument(help="The build's uuid; or a request's, while it waits.")],
    cell: Annotated[
        str, typer.Option(help="The cell it is in, if you know: then nobody else is asked.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until it is down; exit 1 unless it was there, and is.")
    ] = False,
    fence: Annotated[
        bool,
        typer.Option(
            "--fence",
            help="Also if no build has this id yet: a request with it that is still on its way gets no host."
            " The id cannot be used again.",
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait.")] = 600.0,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Take a build down and give its resources back; or end its wait for a host.

    A build can be deleted at any moment: while it waits, is placed or built, and after its end. The command
    asks all cells for it. If no cell has it, the scheduler ends it, or forwards the request to the cell that
    it was placed in. An unknown id is an error (exit 1). With --wait the command returns when placement holds
    nothing for the build any more.
    """
    run(delete(effective(state_dir=state_dir).settings, build, cell, wait, timeout, say, as_json, fence))


async def delete(
    settings: Settings,
    id_: str,
    cell: str,
    wait: bool,
    timeout: float,
    say: Console,
    as_json: bool = False,
    fence: bool = False,
) -> int:
    try:
        id_ = str(uuid.UUID(id_))
    except ValueError:
        raise BadSetting(f"{id_!r} is not the uuid of a build") from None
    async with Bus(wiring.transport(settings, "delete")) as bus:
        return await _Deleting(bus, id_, wait, timeout, say, as_json, fence).go(settings, cell)


class _Deleting:
    """The deletion of one build, from the request to its result."""

    def __init__(
        self, bus: Bus, id_: str, wait: bool, timeout: float, say: Console, as_json: bool, fence: bool
    ) -> None:
        self.bus = bus
        self.id = id_
        self.wait = wait
        self.timeout = timeout
        self.say = say
        self.as_json = as_json
        self.fence = fence
        self.reply_to = f"delete-{Clock().uuid()[:8]}"

    async def go(self, settings: Settings, cell: str) -> int:
        self.deleted = await self.bus.listen(topics.BUILD_DELETED.at(reply_to=self.reply_to))
        silent: list[str] = []
        if not cell:
            cell, silent = await self._whose(settings)
        if cell:
            return await self._by_its_cell(cell)
        return await self._by_the_scheduler(silent)

    async def _whose(self, settings: Settings) -> tuple[str, list[str]]:
        """Return the cell that knows the build, and the cells that did not answer."""
        cells = await known_cells(self.bus, settings)
        find = self.bus.asker(topics.FIND_BUILDS, timeout=min(self.timeout, SECONDS))
        found, silent = await ask_cells(cells, lambda cell: find(FindBuilds(cell=cell, builds=(self.id,))))
        return next((cell for cell, answer in found.items() if answer.builds), ""), silent

    async def _by_its_cell(self, cell: str) -> int:
        await self._publish(BuildDeleteRequested(build=self.id, cell=cell, reply_to=self.reply_to))
        if self.wait:
            said = await self._down()
            held = await _held(self.bus, self.id)
            if not said.known:
                raise CommandRefused(
                    f"{self.id} is not a build of cell {cell}{f': it holds {held}' if held else ''}"
                )
            if held:
                raise CommandRefused(f"{self.id} is down, and yet it holds {held}")
        self._tell(f"{self.id} {self._becomes}", cell=cell)
        return 0

    async def _by_the_scheduler(self, silent: Sequence[str]) -> int:
        """Let the scheduler end a build that no reachable cell has."""
        cancelled = await self.bus.listen(topics.BUILD_CANCELLED.at(reply_to=self.reply_to))
        await self._publish(
            BuildCancelRequested(build=self.id, reply_to=self.reply_to, anywhere=True, fence=self.fence)
        )
        said = await self._within(
            cancelled.get(),
            f"no scheduler said within {self.timeout:g} s what became of {self.id}; one that comes back will"
            " still end it",
        )
        if said.passed_on:
            return await self._passed_on(said)
        if silent:
            complain.print(f"[yellow]note[/yellow]: did not answer: {named(silent)}")
        if not said.known and not self.fence:
            raise CommandRefused(
                f"{self.id}: {said.why}. If its request is still on its way, --fence keeps it from getting a"
                " host"
            )
        if not said.waited and said.known and (held := await _held(self.bus, self.id)):
            raise CommandRefused(f"{self.id} {said.why}: {held}")
        self._tell(f"{self.id}: {printable(said.why)}", becomes="not placed", why=said.why)
        return 0

    async def _passed_on(self, said: BuildCancelled) -> int:
        """Follow a deletion that the scheduler forwarded to cells: it is complete when placement has no
        allocations left.
        """
        for build, cell in said.passed_on.items():
            if self.wait:
                await self._within(
                    self._until_nothing_is_held(build),
                    f"not waiting any longer: {build} was not taken down within {self.timeout:g} s",
                )
            self._tell(f"{build} {self._becomes} by cell {cell}", build=build, cell=cell)
        return 0

    @property
    def _becomes(self) -> str:
        return "deleted" if self.wait else "will be deleted"

    def _tell(self, sentence: str, **facts: str) -> None:
        known = {"build": self.id, "becomes": self._becomes, "cell": "", "why": ""}
        tell(self.say, self.as_json, sentence, **known | facts)

    async def _until_nothing_is_held(self, build: str) -> None:
        while await _held(self.bus, build):
            await asyncio.sleep(_LOOK_SECONDS)

    async def _down(self) -> BuildDeleted:
        return await self._within(
            self.deleted.get(),
            f"not waiting any longer: {self.id} was not taken down within {self.timeout:g} s",
        )

    async def _publish(self, message: Message) -> None:
        await publish(self.bus, checked(message), patience=min(self.timeout, PATIENCE))

    async def _within(self, what: Awaitable[T], otherwise: str) -> T:
        try:
            async with asyncio.timeout(self.timeout):
                return await what
        except TimeoutError:
            raise CommandRefused(otherwise) from None


async def _held(bus: Bus, consumer: str) -> str:
    """Return the consumer's remaining allocations in placement as text, or an empty string."""
    found = await bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=(consumer,)))
    if not found.consumers:
        return ""
    allocations = found.consumers[0].allocations
    question = FindProviders(ids=tuple(allocations), parts=("owner",))
    places = {provider.id: provider for provider in (await bus.asker(topics.PROVIDERS)(question)).providers}
    told = []
    for provider, amounts in allocations.items():
        place = places.get(provider)
        where = (place.host or place.name) if place is not None else provider
        cell = f" in cell {place.cell}" if place is not None and place.cell else ""
        told.append(f"{', '.join(f'{amount} {name}' for name, amount in amounts.items())} on {where}{cell}")
    if found.consumers[0].client:
        told.append("a client of the API claimed it: one that came over is a build after `berth adopt`")
    return "; ".join(told)
