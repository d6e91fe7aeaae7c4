"""`berth openstack report`: compares the decisions of a running Nova's scheduler with berth's."""

from typing import Annotated

from berth.kit import Cli, Commands, described, plain_table, seconds_since
from bus.clock import Clock, moment_text
from bus.masking import printable
from control_room.kit import duration, listed, several
from features.nova.with_what_if.core.report_shown import agreement, report_shown
from features.nova.with_what_if.messages import (
    NOVA_REPORT,
    FindNovaReport,
    NovaReportFound,
    ObservedRequest,
    SchedulerFigures,
)

SECONDS = 60.0  # for an answer with a report

commands = Commands()

Since = Annotated[str, described("Requests of the last: 90s, 30m, 12h, 7d.", metavar="TIME")]
Most = Annotated[int, described("Requests of each kind that are listed.", min=0, max=1000)]


@commands.command("report")
async def report_command(cli: Cli, since: Since = "24h", most: Most = 20) -> None:
    """Compare the decisions of a running Nova's scheduler with berth's (shadow mode).

    `berth run nova-shadow` follows Nova and stores the decisions; nothing is claimed.
    """
    question = FindNovaReport(since=max(0.0, Clock().now() - seconds_since(since)), listed=most)
    async with cli.bus("nova report") as bus:
        found = await bus.asker(NOVA_REPORT, timeout=SECONDS)(question)
    if cli.as_json:
        cli.value(found, "")
    else:
        _print(found, cli)


def _print(found: NovaReportFound, cli: Cli) -> None:
    cli.line(several(found.requests, "request"), "bold")
    shown, share = report_shown(found), agreement(found)
    if share is not None:
        cli.line(f"agreement: {share:.1f} % of {found.same + found.different} requests got the same hosts")
    verdicts = [(verdict.name, verdict.requests) for verdict in shown.verdicts if verdict.requests]
    cli.say.print(plain_table(("result", "requests"), verdicts))
    rows = [("Nova", *_figures(found.nova)), ("berth", *_figures(found.berth))]
    columns = ("scheduler", "hosts used", "imbalance", "fragmentation", "p50", "p99")
    cli.say.print(plain_table(columns, rows))
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
    for period in found.missing:
        cli.line(
            f"notifications may be missing: {moment_text(period.since)} to {moment_text(period.until)}",
            "yellow",
        )
    for queue in found.unread:
        text = f"Nova's queue {printable(queue.queue)} grows without a consumer: {queue.messages} messages"
        cli.line(text, "yellow")
    for reason in found.undecided_reasons:
        cli.line(f"not decided: {several(reason.requests, 'request')}: {printable(reason.reason)}", "yellow")


def _figures(figures: SchedulerFigures) -> tuple[object, ...]:
    imbalance = "–" if figures.imbalance is None else f"{figures.imbalance:.2f}"
    stranded = "–" if figures.fragmentation is None else f"{100 * figures.fragmentation:.1f} %"
    return figures.hosts, imbalance, stranded, duration(figures.p50), duration(figures.p99)


def _row(request: ObservedRequest) -> tuple[str, ...]:
    """Return one row of the printed comparison: the hosts that Nova and berth chose for a request, or why
    they chose no host.
    """
    nova = listed(request.nova_hosts) or request.nova_reason or "–"
    berth = listed(request.berth_hosts) or request.berth_reason or "–"
    cells = request.instance, request.operation, request.flavor, nova, berth
    return tuple(printable(cell) for cell in cells)
