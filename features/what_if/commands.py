"""`berth request what-if`: shows whether a request would fit now, and where."""

import dataclasses
from typing import Annotated, Any

from msgspec import structs

from berth.kit import (
    BootOptions,
    Cli,
    Commands,
    OptionsOf,
    added,
    boot_descriptions,
    boot_request,
    checked,
    held_sentence,
    names_of,
    option,
    print_funnel,
    print_notes,
    resolved_request,
    write_json,
)
from bus.clock import Clock
from bus.masking import printable
from control_room.kit import expected_evaluation, expected_start, several
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered
from features.what_if.parts import MODULE, WhatIfPart

SECONDS = 30.0  # time limit for an answer to a query

commands = Commands()

_ASKED = boot_descriptions("count", "name")


@dataclasses.dataclass(frozen=True)
class WhatIfOptions:
    count: int = option(1, "Instances, all or none; a boot has at most 1000.", min=1, max=10_000)
    best: int = option(8, "So many of the best hosts are named.", min=1, max=64)
    room: bool = option(True, "Count how many more there is room for.", "--room/--no-room")
    preempt: bool = option(False, "If it fits nowhere, show the instances that it would preempt.")


@dataclasses.dataclass(frozen=True)
class MoreQuestions:
    """Options of other features, which answer other questions."""

    more: tuple[Any, ...] = ()


_PARTS = added(WhatIfPart, MODULE)
_MORE = {"more": OptionsOf(tuple(part.options for part in _PARTS if part.options is not None))}


@commands.command("what-if")
async def what_if_command(
    cli: Cli,
    options: Annotated[BootOptions, _ASKED],
    question: WhatIfOptions,
    others: Annotated[MoreQuestions, _MORE],
) -> int:
    """Show whether a request would fit now, where, how often, and what would help. Nothing is claimed.

    The options are those of `berth boot`: `berth request what-if --vcpus 4 --memory-mb 8192 --zone z2 --count
    10`.
    """
    for other in others.more:
        code: int | None = await other.answer(cli, options, question)
        if code is not None:
            return code
    options = dataclasses.replace(options, count=min(question.count, 1000))
    request = boot_request(options)
    print_notes(request)
    async with cli.bus("what-if") as bus:
        request = checked(await resolved_request(bus, request, names_of(options)))
        ask = bus.asker(WHAT_IF, timeout=SECONDS)
        wanted = WhatIf(request=request, best=question.best, room=question.room, count=question.count)
        answer = await ask(structs.replace(wanted, replacing=question.preempt, claims=True))
        additions = [await part.additions(bus, answer) for part in _PARTS if part.additions is not None]
    answer = structs.replace(answer, claims=())
    if cli.as_json:
        more = {name: value for each in additions for name, value in each.fields.items()}
        write_json(structs.asdict(answer) | more)
    else:
        show_answer(answer, cli)
        for text, style in (line for each in additions for line in each.lines):
            cli.line(text, style or None)
    return 0 if answer.fits else 1


def show_answer(answer: WhatIfAnswered, cli: Cli) -> None:
    """Print where a request would be placed, or why nowhere."""
    if answer.refusal:
        cli.line(printable(answer.refusal_sentence), "red")
        return
    count = sum(placed.instances for placed in answer.placed)
    if answer.fits:
        as_flavor = f", as flavor {answer.flavor} of --or-else" if answer.flavor else ""
        cli.line(f"it fits: {several(count, 'instance')}{as_flavor}", "green")
    else:
        cli.line(f"it does not fit [{answer.decision.code}]", "red")
    for note in answer.notes:
        cli.line(f"  {printable(note)}", "yellow")
    if answer.backlog is not None:
        place, before = answer.backlog, several(answer.backlog.before, "request")
        cli.line(f"  before it in its project's backlog: {before} (weight {place.weight:g})", "yellow")
        evaluated = expected_evaluation(place.start_p50, place.start_p90, Clock().now())
        cli.line(f"  expected evaluation: {evaluated}")
    if not answer.fits:
        starts = expected_start(answer.start_p50, answer.start_p90, None, Clock().now())
        cli.line(f"  expected start if it waits: {starts}")
    for replaced in answer.replaced:
        cli.line(f"  it would replace {replaced.build} {printable(replaced.says)}", "yellow")
    if count > 1 or answer.replaced:
        for placed in answer.placed:
            zone = f", zone {printable(placed.zone)}" if placed.zone else ""
            cli.line(f"  {placed.instances:>5} on {printable(placed.host)} (cell {placed.cell}{zone})")
    for held in answer.held:
        cli.line(f"  {held_sentence(held)}", "yellow")
    print_funnel(answer.decision, cli.say, answer.placed[0].root if answer.placed else "")
    if answer.room:
        total, hosts = sum(left.instances for left in answer.room), sum(left.hosts for left in answer.room)
        cli.line(f"  room for {total} more, on {several(hosts, 'host')}", "bold")
        for left in answer.room:
            where = f"cell {left.cell}" + (f", zone {printable(left.zone)}" if left.zone else "")
            cli.line(f"    {where:<30}{left.instances:>9} on {left.hosts}")
        if answer.permitted is not None and answer.permitted.permits < total:
            cli.line(f"  {printable(answer.permitted.says)}", "yellow")
    if answer.cut:
        cli.line(f"  {printable(answer.cut)}", "yellow")
