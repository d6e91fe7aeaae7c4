"""Shows the records about a build, request or move."""

from berth.kit.decision_output import attempts_of, held_sentence, print_funnel
from berth.kit.record_queries import KnownRecords
from berth.kit.terminal import Cli, write_json
from bus.clock import Clock
from bus.decisions import BACKLOG
from bus.masking import printable
from bus.queries import BuildStands, DecisionFound
from control_room.kit.words import expected_evaluation, expected_start


def show_records(cli: Cli, known: KnownRecords) -> None:
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
