"""`berth dead`: the messages nobody could handle, each with its reason; to look at, try again, or drop."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from berth import wiring
from berth.commands.options import StateDir
from berth.commands.terminal import effective, run, say
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.protocol import DeadLetter, Envelope

_ALL = 1_000_000

commands = typer.Typer(no_args_is_help=True, help="Messages nobody could handle, each with its reason.")

Id = Annotated[str, typer.Argument(metavar="ID", help="An id of `berth dead list`, or its beginning.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or their beginnings; or `all`.")]


@commands.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Whole, as JSON lines.")] = False,
    state_dir: StateDir = None,
) -> None:
    """One line each, oldest first."""
    run(list_letters(effective(state_dir=state_dir).settings, as_json, say))


@commands.command("show")
def show_command(id_: Id, state_dir: StateDir = None) -> None:
    """One dead letter whole: its reason, its story, its traceback, its body."""
    run(show_letter(effective(state_dir=state_dir).settings, id_, say))


@commands.command("replay")
def replay_command(ids: Ids, state_dir: StateDir = None) -> None:
    """Send them to the queue they died in once more, and take them out of here."""
    run(replay(effective(state_dir=state_dir).settings, ids, say))


@commands.command("drop")
def drop_command(ids: Ids, state_dir: StateDir = None) -> None:
    """Throw them away for good."""
    run(drop(effective(state_dir=state_dir).settings, ids, say))


async def list_letters(settings: Settings, as_json: bool, say: Console) -> int:
    async with Bus(wiring.transport(settings, "dead")) as bus:
        letters = await bus.transport.dead_letters(_ALL)
    if as_json:
        for letter in letters:
            sys.stdout.write(msgspec.json.encode({**_facts(letter), "body": _text(letter)}).decode() + "\n")
        return 0
    if not letters:
        say.print("no dead letters")
        return 0
    for letter in letters:
        reason = " ".join(letter.reason.split())[:200]
        say.print(f"{letter.id}  {_when(letter.died)}  {letter.queue}  {reason}", markup=False)
    return 0


async def show_letter(settings: Settings, id_: str, say: Console) -> int:
    async with Bus(wiring.transport(settings, "dead")) as bus:
        letters = await bus.transport.dead_letters(_ALL)
    chosen = _chosen(letters, [id_], say)
    for letter in chosen:
        for name, value in _facts(letter).items():
            say.print(f"[bold]{name}[/bold]: {escape(str(value))}")
        if letter.traceback:
            say.print(letter.traceback, markup=False)
        say.print(_text(letter), markup=False)
    return 0 if chosen else 1


async def replay(settings: Settings, ids: Sequence[str], say: Console) -> int:
    """Send letters back to the queue they died in, as if for the first time; then take them out."""
    async with Bus(wiring.transport(settings, "dead")) as bus:

        async def rescue(letter: DeadLetter) -> None:
            envelope = Envelope(
                id=letter.id,
                type=letter.type,
                key=letter.key,
                body=msgspec.Raw(letter.body),
                correlation=letter.correlation,
                sent_at=bus.clock.now(),
                first_died=letter.first_died,
                framed=False,
            )
            await bus.transport.send(letter.queue, envelope, expected=True)

        chosen = _chosen(await bus.transport.dead_letters(_ALL), ids, say)
        count = await bus.transport.exhume({letter.id for letter in chosen}, rescue)
    say.print(f"{count} replayed")
    return 0 if chosen or _all(ids) else 1


async def drop(settings: Settings, ids: Sequence[str], say: Console) -> int:
    async with Bus(wiring.transport(settings, "dead")) as bus:
        chosen = _chosen(await bus.transport.dead_letters(_ALL), ids, say)
        count = await bus.transport.exhume({letter.id for letter in chosen})
    say.print(f"{count} dropped")
    return 0 if chosen or _all(ids) else 1


def _chosen(letters: Sequence[DeadLetter], ids: Sequence[str], say: Console) -> list[DeadLetter]:
    """The letters meant: by the beginning of an id, or `all`."""
    if _all(ids):
        return list(letters)
    chosen = [letter for letter in letters if any(letter.id.startswith(id_) for id_ in ids)]
    for id_ in ids:
        if not any(letter.id.startswith(id_) for letter in letters):
            say.print(f"no dead letter's id begins with {id_!r}", style="red", markup=False)
    return chosen


def _all(ids: Sequence[str]) -> bool:
    return list(ids) == ["all"]


def _facts(letter: DeadLetter) -> dict[str, str | int]:
    return {
        "id": letter.id,
        "reason": letter.reason,
        "queue": letter.queue,
        "key": letter.key,
        "type": letter.type,
        "first died": _when(letter.first_died),
        "died": _when(letter.died),
        "attempt": letter.attempt,
        "correlation": letter.correlation,
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _text(letter: DeadLetter) -> str:
    return letter.body.decode(errors="replace")
