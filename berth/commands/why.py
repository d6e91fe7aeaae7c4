"""`berth why`: where a build landed or why nowhere, as a picture; the same decision made again."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from berth.commands.move_list import facts_of
from berth.commands.move_output import print_funnel, tell_supposed
from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, write_json
from berth.commands.what_if import show_answer
from berth.operations.boot_options import recorded_request
from berth.operations.cells import known_cells
from berth.operations.moving import supposed
from berth.settings import BadSetting, Settings
from bus import topics
from bus.decisions import RecordedHost
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.masking import printable
from bus.moves import FindMoves, MovesFound, MoveStands
from bus.queries import BuildStands, DecisionFound, FindBuilds, FindDecision, WhatIf

SECONDS = 5.0  # an answer may take

commands = Commands()


@commands.command("why")
async def why_command(
    cli: Cli,
    build: Annotated[
        str,
        typer.Argument(
            metavar="BUILD|REQUEST|MOVE",
            help="The uuid of a build, of a request that found no host, or of a move.",
        ),
    ],
    again: bool = option(
        False, "Make the recorded decision again; exit 1 unless it is the same host.", "--replay"
    ),
    now: bool = option(
        False,
        "What would become of it today, by present hosts and rules; of a placed build: one"
        " instance of the flavor it got.",
    ),
) -> int:
    """Explain why a build is on its host or has none, or why a move chose its host, waits, or was refused.

    Shows the considered hosts, how many each constraint rejected, the weights of the best, and what
    followed: refused claims, attempts, alternates. For a build without a host: the closest hosts, and what
    would help.
    """
    if again and now:
        raise BadSetting("--replay is about then, --now about today: one of them")
    try:
        id_ = str(uuid.UUID(build))
    except ValueError:
        raise BadSetting(f"{build!r} is not the uuid of a build or request") from None
    return await why(cli, id_, again, now)


@dataclass(frozen=True)
class Known:
    """All records of a build, from its cell, from schedulers and from placement."""

    stands: tuple[BuildStands, ...]  # the build, or the builds of the request
    moves: tuple[MoveStands, ...]  # the move, if it has begun
    decided: DecisionFound
    silent: tuple[str, ...]  # workers that did not answer


async def why(cli: Cli, id_: str, again: bool, now: bool) -> int:
    async with cli.bus("why") as bus:
        known = await _known(cli.settings, bus, id_)
        if not known.stands and not known.moves and not known.decided.known:
            unheard = f" ({', '.join(known.silent)} did not answer)" if known.silent else ""
            raise OperationRefused(f"nobody knows a build, request or move {id_}{unheard}")
        if now:
            return await _ask_now(cli, bus, known)
    if again:
        return _again(cli, known)
    if cli.as_json:
        for value in (*known.stands, *known.moves):
            write_json(value)
        if known.decided.known:
            write_json(known.decided)
        return 0
    for value in known.stands:
        _show_placed(value, cli.say)
    for move in known.moves:
        for fact in facts_of(move):
            cli.say.print(fact)
        print_funnel(move.decision, cli.say)
    if known.decided.known:
        _show_decided(known.decided, cli.say)
    return 0


async def _known(settings: Settings, bus: Bus, id_: str) -> Known:
    """Query all cells and schedulers for records of a build, in parallel."""
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    cells = await known_cells(bus, settings)
    decision = bus.asker(topics.DECISION, timeout=SECONDS)(FindDecision(id=id_))
    moves = bus.asker(topics.FIND_MOVES, timeout=SECONDS)
    questions = [find(FindBuilds(cell=cell, builds=(id_,))) for cell in cells]
    of_moves = [moves(FindMoves(cell=cell, moves=(id_,))) for cell in cells]
    answers: Sequence[Any] = await asyncio.gather(decision, *questions, *of_moves, return_exceptions=True)
    silent, stands, moved = list[str](), list[BuildStands](), list[MoveStands]()
    asked = ("the scheduler", *(f"cell {cell}" for cell in (*cells, *cells)))
    for name, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Unavailable | Unroutable):
            silent += [name] if name not in silent else []
        elif isinstance(answer, BaseException):
            raise answer
        elif isinstance(answer, MovesFound):
            moved += answer.moves
        elif not isinstance(answer, DecisionFound):
            stands += answer.builds
    decided = answers[0] if isinstance(answers[0], DecisionFound) else DecisionFound()
    return Known(tuple(stands), tuple(moved), decided, tuple(silent))


# As a picture


def _show_placed(build: BuildStands, say: Console) -> None:
    placed, decision = build.placed, build.placed.decision
    where = f"{printable(build.host or placed.chosen.host)} in cell {placed.cell}"
    _print(
        say, Text(f"{build.build}  {build.status} on {where}  (flavor {printable(placed.spec.flavor.name)})")
    )
    if decision.record is None:
        _print(say, Text("  it was placed before, and told again: how is not recorded", style="yellow"))
    print_funnel(decision, say, placed.chosen.root)
    if placed.alternates:
        _print(say, Text(f"  alternates  {', '.join(printable(spare.host) for spare in placed.alternates)}"))
    for number, attempt in enumerate(build.attempts, 1):
        cause = f": {printable(attempt.cause)}" if attempt.cause else ""
        _print(say, Text(f"  attempt {number}  {printable(attempt.host)}: {attempt.outcome}{cause}"))
    if build.reason:
        _print(say, Text(f"  {printable(build.reason)}", style="red"))


def _show_decided(found: DecisionFound, say: Console) -> None:
    of = f"{found.move.kind} {found.move.move} of {found.move.build}: " if found.move is not None else ""
    if found.waits:
        _print(say, Text(f"{of}waits for room: {printable(found.reason)}", style="yellow"))
        if found.wakes:
            _print(say, Text(f"  it is looked at again when {printable(found.wakes)}"))
    else:
        code = f" [{found.decision.code}]" if found.decision.code else ""
        end = "refused" if of else "no host"
        _print(say, Text(f"{of}{end}{code}: {printable(found.reason)}", style="red"))
    print_funnel(found.decision, say)


def _print(say: Console, line: Text) -> None:
    line.rstrip()
    say.print(line)


# Again


def _again(cli: Cli, known: Known) -> int:
    """Repeat recorded decisions from their records; return 1 unless all choose the same host."""
    if known.moves:
        raise OperationRefused("it is a move: only the choice of a build is made again")
    if not known.stands:
        raise OperationRefused("it was placed nowhere: there is no choice to be made again")
    from scheduler_worker import replay

    same = True
    for build in known.stands:
        record, chosen = build.placed.decision.record, build.placed.chosen
        if record is None:
            raise OperationRefused(f"{build.build} was told again: how it was placed is not recorded")
        host = replay(build.build, record).host
        same &= host is not None and host.root == chosen.root
        _tell_again(cli, build, host)
    return 0 if same else 1


def _tell_again(cli: Cli, build: BuildStands, host: RecordedHost | None) -> None:
    chosen = build.placed.chosen
    same = host is not None and host.root == chosen.root
    if cli.as_json:
        write_json(
            {"build": build.build, "recorded": chosen.root, "again": host.root if host else "", "same": same}
        )
    elif same:
        _print(cli.say, Text(f"{build.build}  again {printable(chosen.host)}: the same host", style="green"))
    else:
        other = printable(host.host) if host is not None else "nobody"
        said = f"{build.build}  recorded {printable(chosen.host)}, again {other}: it differs"
        _print(cli.say, Text(said, style="red"))


async def _ask_now(cli: Cli, bus: Bus, known: Known) -> int:
    if known.moves:
        raise OperationRefused("it has begun: `berth move --dry-run` asks about another")
    if known.decided.move is not None:
        moves = [known.decided.move]
        return tell_supposed(cli, moves, await supposed(bus, moves))
    request = known.decided.request or recorded_request(known.stands[0])
    if not request.instances:
        raise OperationRefused("what was asked is not recorded")
    answer = await bus.asker(topics.WHAT_IF)(WhatIf(request=request))
    if cli.as_json:
        write_json(answer)
    else:
        before = known.stands[0].host if known.stands else "nowhere"
        _print(cli.say, Text(f"then {printable(before)}; now:"))
        if not known.decided.request:
            _print(cli.say, Text(_asked_of(known.stands), style="dim"))
        show_answer(answer, cli.say)
    return 0 if answer.fits else 1


def _asked_of(stands: Sequence[BuildStands]) -> str:
    """Return the requests of placed builds to evaluate now, as far as their records contain them."""
    flavor = printable(stands[0].placed.spec.flavor.name)
    of = "the first build of the request" if len(stands) > 1 else "this build alone"
    return f"asked for {of}, with flavor {flavor}, which it got; or_else is not asked anew"
