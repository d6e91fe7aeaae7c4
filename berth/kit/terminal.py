"""Prints the results of a command: text, tables, JSON, notes and progress."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.markup import escape

from berth.settings import Settings
from bus import parts
from bus.broker_urls import place
from bus.clock import Clock
from bus.errors import Unavailable
from bus.masking import OBEYED

if TYPE_CHECKING:
    from rich.progress import Progress

    from bus.delivery.recording import RecordingBus


_COLOURS = {"active": "green", "moving": "yellow", "verifying": "yellow", "shelved": "cyan"}


_RECORD_SECONDS = 5.0  # until a connection to the broker counts as unavailable


_SLOW_SECONDS = 2.0  # then a note says which broker does not answer


_PIPED_WIDTH = 200  # columns of a table outside of a terminal


def console(file: IO[str], width: int | None = None) -> Console:
    """Return a console that wraps no lines: terminals wrap lines themselves, and pipes need whole lines.
    `width`: columns of a table; None: those of the terminal or of the variable COLUMNS, else 200.
    """
    if width is None and not (file.isatty() or os.environ.get("COLUMNS")):
        width = _PIPED_WIDTH
    return Console(file=file, highlight=False, soft_wrap=True, width=width)


say = console(sys.stdout)


complain = console(sys.stderr)


def progress_bar(shown: bool = True) -> "Progress":
    """Return a progress bar on standard error, drawn only in a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, console=complain, transient=True, disable=not (shown and complain.is_terminal))


def write_json(value: Any) -> None:
    """Print a value as a line of JSON, in which characters that terminals interpret are escaped."""
    text = parts.encoder().encode(value).decode()
    sys.stdout.write(OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


@dataclass(frozen=True)
class Cli:
    """Prints the results of a command as text or JSON, and holds the settings in force."""

    settings: Settings
    as_json: bool = False
    say: Console = say
    through: str = "berth"  # name of the command in the audit trail
    request: str = field(default_factory=lambda: Clock().uuid())  # id of this command in the audit trail

    @asynccontextmanager
    async def bus(self, name: str) -> AsyncIterator["RecordingBus"]:
        """Connect to the message bus under the given connection name, for the `with` block. The audit trail
        records what the command does. If the broker does not answer soon, a note says so.
        """
        from berth import composition
        from berth.operators import operator_bus

        settings, loop = self.settings, asyncio.get_running_loop()
        broker = (
            "the berth of this machine"
            if settings.embedded
            else f"RabbitMQ at {place(settings.bus.amqp_url)}"
        )
        slow = loop.call_later(_SLOW_SECONDS, note, f"still trying to reach {broker}")
        async with AsyncExitStack() as stack:
            stack.callback(slow.cancel)
            transport = composition.transport(settings, name)
            bus = operator_bus(settings, transport, self.through, self.request)
            await stack.enter_async_context(bus)
            slow.cancel()
            yield bus

    @asynccontextmanager
    async def recorded(self, act: str, target: str, detail: str) -> AsyncIterator[None]:
        """Check that the operator may do an act that no message requests, such as a change of a
        RabbitMQ user, and record the act; the `with` block executes the act. If no berth answers, the
        act is neither checked nor recorded: credentials are also made before the first start.
        """
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_RECORD_SECONDS):
                    bus = await stack.enter_async_context(self.bus(act))
            except (Unavailable, TimeoutError):
                yield
                note(f"no berth answers, so this is not in the audit trail: {detail}")
                return
            async with bus.act(act, target, detail):
                yield

    def tell(self, sentence: str, **facts: Any) -> None:
        """Print that an action was completed: `sentence`, or with --json an object with `facts`."""
        self.value(facts, sentence)

    def value(self, record: Any, sentence: str, style: str | None = None) -> None:
        """With --json print `record` as a line of JSON, else `sentence`, which describes the record."""
        if self.as_json:
            write_json(record)
        else:
            self.line(sentence, style)

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line of text as it is: text such as [red] does not change colours."""
        self.say.print(text, style=style, markup=False)

    def rows(self, found: Iterable[Any], table: RenderableType) -> None:
        """With --json print each record of `found` as a line of JSON, else print `table`."""
        if self.as_json:
            for record in found:
                write_json(record)
        else:
            self.say.print(table)


def note(text: str) -> None:
    """Print a note on standard error."""
    complain.print(f"[yellow]note[/yellow]: {escape(text)}")


def coloured(status: str) -> str:
    """Return a status with Rich markup in its colour; an unknown status is red."""
    colour = _COLOURS.get(status, "red")
    return f"[{colour}]{status}[/{colour}]"
