"""Runs berth's commands inside a test's event loop; returns output and exit code."""

import asyncio
import inspect
import io
import json
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import CoroutineType
from typing import IO, Any, TypeVar

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from berth import composition
from berth.__main__ import app
from berth.kit import command_groups, running, terminal
from berth.kit.refusals import single_errors
from bus import topics
from bus.cells import FindCells
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.local import LocalBroker, LocalTransport
from placement_worker import Placement, placement_worker
from tests.support.placement_builders import a_placement
from tests.support.waiting import in_time

T = TypeVar("T")


async def plainly(work: Awaitable[T]) -> T:
    try:
        return await work
    except BaseExceptionGroup as several:
        [problem] = single_errors(several)
        raise problem from None


@asynccontextmanager
async def a_served_placement(patch: pytest.MonkeyPatch, *cells: str) -> AsyncIterator[Placement]:
    """Run a placement worker on an in-memory bus, to which commands connect too."""
    broker, stopping = LocalBroker(), asyncio.Event()
    patch.setattr(composition, "transport", lambda settings, name: LocalTransport(broker))
    async with (
        a_placement("sqlite+aiosqlite://", inline=True) as placement,
        Bus(LocalTransport(broker)) as bus,
        asyncio.TaskGroup() as running,
    ):
        running.create_task(bus.serve(placement_worker(placement, bus.publish, cells), stopping))
        await bus.asker(topics.CELLS)(FindCells())  # returns when the worker is ready
        yield placement
        stopping.set()


def no_berth_answers(patch: pytest.MonkeyPatch) -> None:
    class Away(LocalTransport):
        async def open(self) -> None:
            raise Unavailable("no berth")

    patch.setattr(composition, "transport", lambda settings, name: Away(LocalBroker()))


@dataclass(frozen=True)
class Done:
    """A command that has ended: its exit code and its output."""

    code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def typed(*words: str) -> Result:
    """Run `berth` with these words, as far as a command does before it waits."""
    return CliRunner().invoke(app, words)


class CommandLine:
    """Runs commands of `berth GROUP`, of the kernel or of a feature, in the event loop of the test."""

    def __init__(self, group: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._group, self._patch, self._capsys = group, patch, capsys

    async def __call__(self, *words: str, ends: int = 0) -> str:
        sent = io.StringIO()
        work = self._begun(words, sent, sent)
        assert (await plainly(in_time(work)) or 0) == ends, sent.getvalue()
        return sent.getvalue() + self._capsys.readouterr().out

    async def done(self, *words: str) -> Done:
        """Run a command, whose errors are printed as those of a process."""
        sent, complained = io.StringIO(), io.StringIO()
        try:
            code = await in_time(self._begun(words, sent, complained))
        except* running._CONDITIONS as conditions:
            code = running._explain(single_errors(conditions))
        return Done(code or 0, sent.getvalue() + self._capsys.readouterr().out, complained.getvalue())

    def _begun(self, words: Sequence[str], sent: IO[str], complained: IO[str]) -> Awaitable[Any]:
        """Return the coroutine of a command, which prints to these files."""
        started: list[CoroutineType[Any, Any, Any]] = []
        voices = {
            name: Console(file=file, highlight=False, soft_wrap=True, width=200)
            for name, file in (("say", sent), ("complain", complained))
        }
        self._patch.setattr(command_groups, "say", voices["say"])
        for module in (terminal, running):
            self._patch.setattr(module, "complain", voices["complain"])
        self._patch.setattr(command_groups, "run", started.append)
        began = typed(*self._group.split(), *words)
        if began.exception is not None and not isinstance(began.exception, SystemExit):
            raise began.exception
        assert began.exit_code == 0, began.output
        work = started.pop()
        names = vars(inspect.getmodule(work.cr_code))  # a command may print without its Cli
        for voice in voices.keys() & names.keys():
            self._patch.setitem(names, voice, voices[voice])
        return work

    async def json(self, *words: str, ends: int = 0) -> list[Any]:
        return [json.loads(line) for line in (await self(*words, "--json", ends=ends)).splitlines()]
