"""`berth why`: shows why a build is on its host or has no host, and repeats recorded decisions."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from berth.commands.decision_output import attempts_of, held_sentence, print_funnel
from berth.commands.options import Commands, option, positional
from berth.commands.terminal import Cli, write_json
from berth.features import modules
from berth.operations.cells import ask_cells, known_cells, uuid_of
from berth.operations.explanations import BuildExplanation
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clock import Clock
from bus.decisions import BACKLOG
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.queries import BuildStands, DecisionFound, FindBuilds, FindDecision
from control_room.core.words import expected_evaluation, expected_start

SECONDS = 5.0  # time limit for an answer to a query
_SCHEDULER = "the scheduler"

Explained = Annotated[
    str,
    positional(
        "The uuid of a build, of a request that found no host, or of a move.", metavar="BUILD|REQUEST|MOVE"
    ),
]

commands = Commands()


@commands.command("why")
async def why_command(
    cli: Cli,
    build: Explained,
    again: bool = option(
        False, "Repeat the recorded decision; exit 1 unless it is the same host.", "--replay"
    ),
    now: bool = option(
        False,
        "The decision with the present hosts and rules; for a placed build: of one instance of its flavor.",
    ),
) -> int:
    """Explain why a build is on its host or has no host, or why a move chose its host, waits or was refused.

    The output shows the considered hosts, how many of them each filter and requested resource rejected, the
    weights of the best hosts, and later refused claims, attempts and alternates. For a build without a host
    it shows the closest hosts, and what would help.
    """
    if again and now:
        raise BadSetting("--replay repeats the past decision, --now makes a new one: use one of them")
    return await why(cli, uuid_of(build, "a build or request"), again, now)


@dataclass(frozen=True)
class Known:
    """The records of cells and of a scheduler about an id, and the workers that did not answer."""

    stands: tuple[BuildStands, ...]  # the build, or the builds of the request
    decided: DecisionFound
    explained: tuple[BuildExplanation, ...]  # what features add
    silent: tuple[str, ...]  # workers that did not answer

    @property
    def subject(self) -> str:
        """Return what the id is, such as "a move", if a feature has it; empty: of a build or request."""
        return next((each.subject for each in self.explained if each.subject), "")


async def why(cli: Cli, id_: str, again: bool, now: bool) -> int:
    async with cli.bus("why") as bus:
        known = await known_records(cli.settings, bus, id_)
        if now:
            return await _ask_now(cli, bus, known)
    if again:
        return _repeat_decisions(cli, known)
    show_records(cli, known)
    return 0


def show_records(cli: Cli, known: Known) -> None:
    """Print the records about a build, request or move."""
    if cli.as_json:
        records = [each.record for each in known.explained if each.record is not None]
        for value in (*known.stands, *records):
            write_json(value)
        if known.decided.known:
            write_json(known.decided)
        return
    for value in known.stands:
        _show_placed(value, cli)
    for each in known.explained:
        cli.line(each.line, each.style or None)
        if each.decision is not None:
            print_funnel(each.decision, cli.say)
    if known.decided.known:
        _show_decided(known.decided, cli)


async def known_records(settings: Settings, bus: Bus, id_: str) -> Known:
    """Query all cells, a scheduler and placement; return their records about a build, request or move. Raise
    OperationRefused without any record."""
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    decision = bus.asker(topics.DECISION, timeout=SECONDS)
    cells = await known_cells(bus, settings)
    (decided, without_answer), (builds, silent) = await asyncio.gather(
        ask_cells([_SCHEDULER], lambda _: decision(FindDecision(id=id_))),
        ask_cells(cells, lambda cell: find(FindBuilds(cell=cell, builds=(id_,)))),
    )
    stands = tuple(stands for answer in builds.values() for stands in answer.builds)
    explaining = [module for module in modules("explaining") if hasattr(module, "reasons")]
    found = await asyncio.gather(*(module.reasons(bus, id_, stands, cells) for module in explaining))
    explained: list[BuildExplanation] = [each for several in found for each in several]
    known = Known(
        stands,
        decided.get(_SCHEDULER, DecisionFound()),
        tuple(sorted(explained, key=lambda each: not each.subject)),
        (*without_answer, *(f"cell {cell}" for cell in silent)),
    )
    if not known.stands and not known.subject and not known.decided.known:
        unanswered = f" ({', '.join(known.silent)} did not answer)" if known.silent else ""
        raise OperationRefused(f"there is no build, request or move {id_}{unanswered}")
    return known


def _show_placed(build: BuildStands, cli: Cli) -> None:
    placed, decision = build.placed, build.placed.decision
    where = f"{printable(build.host or placed.chosen.host)} in cell {placed.cell}"
    cli.line(f"{build.build}  {build.status} on {where}  (flavor {printable(placed.spec.flavor.name)})")
    if decision.record is None:
        cli.line("  it was placed earlier and published again: the decision is not recorded", "yellow")
    print_funnel(decision, cli.say, placed.chosen.root)
    if placed.alternates:
        cli.line(f"  alternates  {', '.join(printable(alternate.host) for alternate in placed.alternates)}")
    for line in attempts_of(build.attempts):
        cli.line(line)
    if build.reason:
        cli.line(f"  {printable(build.reason)}", "red")


def _show_decided(found: DecisionFound, cli: Cli) -> None:
    of = f"{found.parts.subject}: " if found.parts.subject else ""
    if found.waits:
        cli.line(f"{of}waits for room: {printable(found.reason)}", "yellow")
        if found.wakes:
            cli.line(f"  it is evaluated again when {printable(found.wakes)}")
        now, p50, p90 = Clock().now(), found.start_p50, found.start_p90
        if found.decision.code == BACKLOG:
            cli.line(f"  expected evaluation: {expected_evaluation(p50, p90, now)}")
        else:
            cli.line(f"  expected start: {expected_start(p50, p90, found.until, now)}")
    elif found.placed is not None:
        chosen = found.placed.chosen
        at = f"{found.placed.build}  selected {printable(chosen.host)} in cell {found.placed.cell}"
        cli.line(f"{at}  (flavor {printable(found.placed.spec.flavor.name)})")
        alternates = ", ".join(printable(alternate.host) for alternate in found.placed.alternates)
        print_funnel(found.decision, cli.say, chosen.root)
        if alternates:
            cli.line(f"  alternates  {alternates}")
        return
    else:
        code = f" [{found.decision.code}]" if found.decision.code else ""
        end = "refused" if of else "no host"
        cli.line(f"{of}{end}{code}: {printable(found.reason)}", "red")
    for held in found.held:
        cli.line(f"  now {held_sentence(held)}", "yellow")
    print_funnel(found.decision, cli.say)


def _repeat_decisions(cli: Cli, known: Known) -> int:
    """Repeat the recorded decisions of builds; return 1 if a decision now chooses another host, else 0."""
    if known.subject:
        raise OperationRefused(f"it is {known.subject}: only the choice of a build is made again")
    if not known.stands:
        raise OperationRefused("it was placed nowhere: there is no choice to be made again")
    from scheduler_worker import replay

    same = True
    for build in known.stands:
        record, chosen = build.placed.decision.record, build.placed.chosen
        if record is None:
            raise OperationRefused(f"{build.build} was published again: its decision is not recorded")
        host = replay(build.build, record).host
        root, name = (host.root, printable(host.host)) if host is not None else ("", "nobody")
        facts = {"build": build.build, "recorded": chosen.root, "again": root, "same": root == chosen.root}
        if root == chosen.root:
            cli.value(facts, f"{build.build}  again {printable(chosen.host)}: the same host", "green")
        else:
            differs = f"recorded {printable(chosen.host)}, again {name}: it differs"
            cli.value(facts, f"{build.build}  {differs}", "red")
        same &= root == chosen.root
    return 0 if same else 1


async def _ask_now(cli: Cli, bus: Bus, known: Known) -> int:
    """Let the feature answer that the present decision about these records is of; return the exit code."""
    for module in modules("explaining"):
        if decide := getattr(module, "decide_now", None):
            code: int | None = await decide(cli, bus, known)
            if code is not None:
                return code
    raise BadSetting("--now: no feature of this berth has this option")
