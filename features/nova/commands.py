"""`berth nova`: commands about a Nova that berth serves or observes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from berth.kit import (
    BadSetting,
    Cli,
    Commands,
    check_certificates,
    described,
    option,
    placement_url,
    plain_table,
    seconds_since,
    token_of,
    write_json,
)
from bus.clock import Clock, moment_text
from bus.masking import printable
from control_room.kit import duration, listed, several
from features.nova.core.report_shown import agreement, report_shown
from features.nova.messages import (
    NOVA_REPORT,
    FindNovaReport,
    NovaReportFound,
    ObservedRequest,
    SchedulerFigures,
)

SECONDS = 60.0  # for an answer with a report
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}

commands = Commands(name="nova", no_args_is_help=True)

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


@dataclass(frozen=True)
class CheckOptions:
    step: Literal["import", "placement", "scheduler"] | None = option(
        None, "The next step: import, placement or scheduler (default: all of them)."
    )
    done: bool = option(False, "Check the result of the step, after it was taken.")
    url: str = option(
        "",
        "The Placement to compare with Nova: before the import the former one (default: where"
        " placement_http says).",
        metavar="URL",
    )
    token_file: Path | None = option(
        None, "With the token for --url (default: $OS_TOKEN, or admin).", metavar="FILE"
    )
    cacert: str = option("", "Certificates to trust in addition to the system's.", metavar="FILE")


@commands.command("check")
async def check_command(cli: Cli, options: CheckOptions) -> int:
    """Print what would go wrong in a step of taking over a Nova, with the command that repairs it.

    The command compares Nova's databases with a Placement and with berth's settings, and reads how many
    messages and consumers the RabbitMQ queue of Nova's scheduler has. It changes nothing. Exit code 0 without
    problems, 1 with warnings, 2 with errors.
    """
    from berth.kit import PlacementClient  # an HTTP client, which loads slowly
    from features.nova.check import observed
    from features.nova.takeover.facts import exit_code
    from features.nova.takeover.judgement import judged

    address = cli.settings.placement.http
    if not options.url and not address:
        raise BadSetting("give the URL of the Placement API with --url, or set placement_http")
    check_certificates(options.cacert)
    url = placement_url("--url", options.url or f"http://{address}")
    client = PlacementClient(url, token_of(options.token_file, "OS_TOKEN"), options.cacert)
    facts = await observed(cli.settings, client, step=options.step, is_done=options.done)
    found = judged(facts)
    code = exit_code(found)
    if cli.as_json:
        write_json({"step": options.step, "exit_code": code, "findings": msgspec.to_builtins(found)})
        return code
    for finding in found:
        cli.say.print(f"{finding.level:8}", style=_COLOURS[finding.level], end="")
        sentences = " ".join(filter(None, (finding.says, finding.means)))
        cli.line(f"{printable(finding.about)}: {printable(sentences)}")
        if finding.do:
            cli.line(f"        → {printable(finding.do)}", "dim")
    counts = {level: sum(finding.level == level for finding in found) for level in _COLOURS}
    cli.line(", ".join(several(count, level) for level, count in counts.items()))
    return code
