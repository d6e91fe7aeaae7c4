"""`berth nova`: commands about a Nova that berth serves or observes."""

from typing import Annotated

from berth.commands.nova_check import checks
from berth.commands.options import Commands, described
from berth.commands.terminal import Cli, plain_table
from berth.operations.boot_options import is_time
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.masking import printable
from bus.messages import seconds_of
from bus.shadow import FindNovaReport, NovaReportFound, ObservedRequest, SchedulerFigures
from control_room.core.nova import agreement, report_shown
from control_room.core.words import duration, listed, several

SECONDS = 60.0  # that a report may take

commands = Commands(name="nova", no_args_is_help=True)
commands.add_typer(checks)

Since = Annotated[str, described("Requests of the last: 90s, 30m, 12h, 7d.", metavar="TIME")]
Most = Annotated[int, described("Requests of each kind that are listed.", min=0, max=1000)]


@commands.command("report")
async def report_command(cli: Cli, since: Since = "24h", most: Most = 20) -> int:
    """Compare the decisions of a running Nova's scheduler with berth's (shadow mode).

    `berth run nova-shadow` follows Nova and stores the decisions; nothing is claimed.
    """
    if not is_time(since):
        raise BadSetting(f"--since {since}: takes a time (90s, 30m, 12h, 7d)")
    question = FindNovaReport(since=max(0.0, Clock().now() - seconds_of(since)), listed=most)
    async with cli.bus("nova report") as bus:
        found = await bus.asker(topics.NOVA_REPORT, timeout=SECONDS)(question)
    if cli.as_json:
        cli.value(found, "")
    else:
        _print(found, cli)
    return 0


def _print(found: NovaReportFound, cli: Cli) -> None:
    cli.line(several(found.requests, "request"), "bold")
    shown, share = report_shown(found), agreement(found)
    if share is not None:
        cli.line(f"agreement: {share:.1f} % of {found.same + found.different} requests got the same hosts")
    verdicts = [(verdict.name, verdict.requests) for verdict in shown.verdicts if verdict.requests]
    cli.say.print(plain_table(("result", "requests"), verdicts))
    rows = [("Nova", *_figures(found.nova)), ("berth", *_figures(found.berth))]
    cli.say.print(plain_table(("scheduler", "hosts used", "imbalance", "p50", "p99"), rows))
    if shown.shares:
        shares = [(printable(each.share.host), each.share.nova, each.share.berth) for each in shown.shares]
        cli.say.print(plain_table(("host", "Nova", "berth"), shares))
    for title, requests in (
        ("Nova refused, berth has a host", shown.nova_refused),
        ("berth refused, Nova has a host", shown.berth_refused),
        ("different hosts", shown.different),
    ):
        if requests:
            cli.line(title, "bold")
            cli.say.print(
                plain_table(("instance", "operation", "flavor", "Nova", "berth"), map(_row, requests))
            )
    for reason in found.undecided_reasons:
        cli.line(f"not decided: {several(reason.requests, 'request')}: {printable(reason.reason)}", "yellow")


def _figures(figures: SchedulerFigures) -> tuple[object, ...]:
    imbalance = "–" if figures.imbalance is None else f"{figures.imbalance:.2f}"
    return figures.hosts, imbalance, duration(figures.p50), duration(figures.p99)


def _row(request: ObservedRequest) -> tuple[str, ...]:
    """Return the table cells for a request to Nova, with both schedulers' hosts or reasons."""
    nova = listed(request.nova_hosts) or request.nova_reason or "–"
    berth = listed(request.berth_hosts) or request.berth_reason or "–"
    cells = request.instance, request.operation, request.flavor, nova, berth
    return tuple(printable(cell) for cell in cells)
