"""`berth system dead`: lists, shows, replays and drops dead letters."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated

from rich.console import Console
from rich.markup import escape

from berth import composition, dead_letters
from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.options import described, option, positional
from berth.kit.terminal import Cli, complain, write_json
from berth.settings import BadSetting, Settings
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.protocol import DeadLetter, Transport

_SHOWN = 100  # dead letters listed by default

commands = Commands(name="dead", no_args_is_help=True)

Id = Annotated[str, positional("An id of `berth system dead list`, or its beginning.", metavar="ID")]
OfCell = Annotated[str, described("Dead letters on the cell's own RabbitMQ.", "--cell", metavar="NAME")]
Ids = Annotated[list[str], positional("Ids, or their beginnings; or `all`.", metavar="ID")]


@commands.command("list")
async def list_letters(
    cli: Annotated[Cli, "Whole, as JSON lines; all of them."],
    limit: int | None = option(None, f"At most so many.  [default: {_SHOWN}]", min=1, show_default=False),
    after: str = option("", "Only letters after this one.", metavar="ID"),
    cell: OfCell = "",
) -> None:
    """List dead letters, oldest first."""
    most = limit or (None if cli.as_json else _SHOWN)
    shown, more = 0, False
    async with (
        Bus(_way(cli.settings, cell)) as bus,
        aclosing(_letters(bus.transport, after=after)) as letters,
    ):
        async for letter in letters:
            if shown == most:
                more = True
                break
            shown, after = shown + 1, letter.id
            if cli.as_json:
                write_json({**_facts(letter), "body": _text(letter)})
            else:
                reason = printable(" ".join(letter.reason.split())[:200])
                where = f"{printable(letter.id)}  {_when(letter.died)}  {printable(letter.queue)}"
                cli.line(f"{where}  {reason}")
    if cli.as_json:
        return
    if not shown:
        cli.say.print("no dead letters")
    if more:
        cli.line(f"there are more: berth system dead list --after {printable(after)}")


@commands.command("show")
async def show_letter(cli: Cli, id_: Id, cell: OfCell = "") -> int:
    """Show a dead letter: reason, history, traceback and body."""
    _check([id_])
    found = False
    async with Bus(_way(cli.settings, cell)) as bus:
        async for letter in _letters(bus.transport, beginning=id_):
            found = True
            if cli.as_json:
                write_json({**_facts(letter), "traceback": letter.traceback, "body": _text(letter)})
                continue
            for name, value in _facts(letter).items():
                cli.say.print(f"[bold]{name}[/bold]: {escape(printable(str(value), lines=name == 'reason'))}")
            if letter.traceback:
                cli.line(printable(letter.traceback, lines=True))
            cli.line(printable(_text(letter), lines=True))
    if not found:
        _print_not_found(id_, complain if cli.as_json else cli.say)
    return 0 if found else 1


@commands.command("replay")
async def replay(
    cli: ActCli,
    ids: Ids,
    cell: OfCell = "",
    as_operator: bool = option(
        False,
        "Publish them as your own messages, also if their senders were refused; each is shown and recorded.",
    ),
) -> int:
    """Publish dead letters again to the queues in which they failed, and delete the dead letters. Each is
    judged as its sender's again.
    """
    _check(ids)
    if as_operator and list(ids) == ["all"]:
        raise BadSetting(
            "--as-operator takes ids, not `all`: read each letter before (`berth system dead show ID`)"
        )
    staying = list[str]()

    def stays(why: str) -> None:
        staying.append(why)
        if not cli.as_json:
            cli.line(printable(why), "red")

    async with Bus(_way(cli.settings, cell)) as bus:
        chosen = await _chosen(bus.transport, ids, complain if cli.as_json else cli.say)
        if cli.dry_run:
            return await _rehearse(cli, bus, chosen, cell, "replayed", as_operator)
        if as_operator:
            count = await _replay_as_operator(cli, bus, chosen or (), stays)
        else:
            async with cli.recorded("dead letters", cell or "central", f"replay {' '.join(ids)}"):
                count = await dead_letters.replay(bus.transport, bus.clock, chosen, stays)
    cli.tell(f"{count} replayed", replayed=count, staying=staying)
    return 0 if not staying and (chosen is None or chosen) else 1


async def _replay_as_operator(
    cli: Cli, bus: Bus, chosen: Collection[str], stays: Callable[[str], None]
) -> int:
    """Publish each chosen letter with the operator's rights, after it was shown, and with its own record in
    the audit trail; refuse what the operator's role does not permit.
    """
    count = 0
    letters = [letter async for letter in bus.transport.each_dead_letter() if letter.id in chosen]
    async with cli.bus("dead") as own:
        for letter in letters:
            sender = letter.sender or letter.key
            what = f"{letter.type or 'a message'} of {sender} to {letter.queue}: {_text(letter)}"
            if not cli.as_json:
                cli.line(printable(f"{letter.id} as your own: {what}"))
            async with own.act(dead_letters.act_of(letter), letter.id, f"replay --as-operator {what}"):
                count += await dead_letters.replay(
                    bus.transport, bus.clock, [letter.id], stays, as_operator=True
                )
    return count


@commands.command("drop")
async def drop(cli: ActCli, ids: Ids, cell: OfCell = "") -> int:
    """Delete dead letters permanently."""
    _check(ids)
    if cli.dry_run:
        async with Bus(_way(cli.settings, cell)) as bus:
            chosen = await _chosen(bus.transport, ids, complain if cli.as_json else cli.say)
            return await _rehearse(cli, bus, chosen, cell, "dropped")
    async with (
        cli.recorded("dead letters", cell or "central", f"drop {' '.join(ids)}"),
        Bus(_way(cli.settings, cell)) as bus,
    ):
        chosen = await _chosen(bus.transport, ids, complain if cli.as_json else cli.say)
        count = await bus.transport.remove_dead_letters(chosen)
    cli.tell(f"{count} dropped", dropped=count)
    return 0 if chosen is None or chosen else 1


async def _rehearse(
    cli: ActCli, bus: Bus, chosen: Collection[str] | None, cell: str, did: str, as_operator: bool = False
) -> int:
    """Print how many of the dead letters would be replayed or dropped, by queue; return the exit code."""
    queues, judged = Counter[str](), {("dead letters", cell or "central")}
    async for letter in _letters(bus.transport):
        if chosen is None or letter.id in chosen:
            queues[letter.queue] += 1
            judged |= {(dead_letters.act_of(letter), letter.id)} if as_operator else set()
    for act, target in sorted(judged):
        await cli.rehearse(act, target)
    where = ", ".join(f"{count} of {printable(queue)}" for queue, count in sorted(queues.items()))
    sentence = f"{queues.total()} {cli.becomes(did)}{f': {where}' if where else ''}"
    cli.tell(sentence, **{did: queues.total()}, queues=dict(queues))
    return 0 if chosen is None or chosen else 1


def _way(settings: Settings, cell: str) -> Transport:
    """Return a connection to the broker with a cell's dead letters; `cell` "": the central broker."""
    if cell and not settings.cell(cell).ferry:
        raise BadSetting(f"cell {cell!r} has no separate RabbitMQ: its dead letters are at the central one")
    return composition.transport(settings, "dead", cell)


def _check(ids: Sequence[str]) -> None:
    if not all(id_.strip() for id_ in ids):
        raise BadSetting("an empty id matches every id: give `all` for all letters")
    if "all" in ids and len(ids) > 1:
        raise BadSetting("`all` includes every id: use it without ids")


async def _chosen(transport: Transport, ids: Sequence[str], console: Console) -> Collection[str] | None:
    """Return the ids of the dead letters that begin with a text in `ids`; None, which means all dead letters,
    if `ids` is only the text `all`. Print each text without a match.
    """
    if list(ids) == ["all"]:
        return None
    chosen: set[str] = set()
    for id_ in ids:
        found = {letter.id async for letter in _letters(transport, beginning=id_)}
        if not found:
            _print_not_found(id_, console)
        chosen |= found
    return chosen


async def _letters(
    transport: Transport, *, after: str = "", beginning: str = ""
) -> AsyncGenerator[DeadLetter, None]:
    """Yield the dead letters after the id `after` with ids that begin with `beginning`, either as stored or
    with characters escaped as in the output of `berth system dead list`.
    """
    as_printed = "\\" in beginning
    asked = transport.each_dead_letter(after=after, beginning="" if as_printed else beginning)
    async with aclosing(asked) as letters:
        async for letter in letters:
            if not as_printed or printable(letter.id).startswith(beginning):
                yield letter


def _print_not_found(id_: str, console: Console) -> None:
    console.print(f"no dead letter's id begins with {id_!r}", style="red", markup=False)


def _facts(letter: DeadLetter) -> dict[str, str | int]:
    names = ("id", "reason", "queue", "cell", "key", "sender", "type")
    where = {name: getattr(letter, name) for name in names}
    when = {"first died": _when(letter.first_died), "died": _when(letter.died)}
    return {**where, **when, "attempt": letter.attempt, "correlation": letter.correlation}


def _when(seconds: float) -> str:
    """Return seconds since 1970 as date and time in UTC, or "unknown" for 0 or an impossible number."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        moment = None
    return moment.isoformat(timespec="seconds") if moment else "unknown"


def _text(letter: DeadLetter) -> str:
    return letter.body.decode(errors="replace")
