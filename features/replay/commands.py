"""`berth policy replay`: replays a past period from the history of placement and the recorded decisions."""

from dataclasses import dataclass, replace

from rich.markup import escape

from berth.kit import BadSetting, Cli, Commands, Settings, complain, option, plain_table, progress_bar
from bus.clock import Clock, moment_text
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.masking import printable
from control_room.kit import duration
from features.history.reading import moment_of
from features.policies.commands import NOT_POSSIBLE, ComparisonOptions, show_test
from features.policies.policy_changes import FORMS, ChangedNumbers, ChangedPolicy, changed_policy
from features.policies.policy_tests import recorded_decisions
from features.replay.replay import Replay, ReplayResult

commands = Commands()

BUILD_SECONDS = 60.0  # from a decision until the build begins, which its cell records

_TIMES = "2026-03-29T14:30 (UTC, or with an offset), or how long ago (90s, 30m, 12h, 7d)."


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ComparisonOptions):
    begin: str = option("1h", f"Begin of the period: {_TIMES}", "--from", metavar="TIME")
    end: str = option("0s", f"End of the period: {_TIMES}", "--to", metavar="TIME")
    changes: list[str] | None = option(None, f"{FORMS}; may be repeated.", "--with", metavar="CHANGE")


@commands.command("replay")
async def replay_command(cli: Cli, options: ReplayOptions) -> int:
    """Replay a past period: does each recorded decision choose the same host, as recorded or with a changed
    policy?

    Example: `berth policy replay --from 2h --to 1h --with rules.filters=+num_instances`. The numbered changes
    of placement are applied in their order. Each decision is made again from its record or, if the record
    does not show the effect of the change, on all hosts as they were at that time. Nothing is claimed.

    Exit code: 0 no difference, or within --allow; 1 differences; 2 the replay is not possible.
    """
    now = Clock().now()
    begin, end = moment_of(options.begin, now), moment_of(options.end, now)
    if begin.number is not None or end.number is not None:
        raise BadSetting("--from and --to are times, not change numbers")
    if begin.at >= end.at:
        raise BadSetting("--from must be earlier than --to")
    changed = policy_of(cli.settings, options.changes or [])
    async with cli.bus("replay") as bus:
        try:
            found = await recorded_decisions(
                bus, cli.settings, begin.at, options.project, options.limit, end.at + BUILD_SECONDS
            )
            replay = Replay(bus, cli.settings, changed, found.decisions)
            began = Clock().monotonic()
            with progress_bar() as bar:
                shown = bar.add_task("changes", total=None)
                result = await replay.run(begin, end.at, lambda _: bar.advance(shown))
        except (OperationRefused, Unavailable, Unroutable) as problem:
            complain.print(escape(printable(f"the replay is not possible: {problem}")), style="red")
            return NOT_POSSIBLE
    if not cli.as_json:
        cli.line(f"from {moment_text(begin.at)} to {moment_text(end.at)}")
        _show_changes(cli, result, end.at - begin.at, Clock().monotonic() - began)
    show_test(cli, result.test, options.listed, found.omitted)
    return 0 if result.test.passes(options.allow) else 1


def policy_of(settings: Settings, changes: list[str]) -> ChangedPolicy:
    """Return the policy to replay: the settings' policy with the changes. Without changes, each decision is
    made again from its record alone.
    """
    changed = changed_policy(settings, changes)
    if changed.stored:
        names = " and ".join(each.subject for each in changed.stored)
        raise BadSetting(
            f"{names} of a past time are not recorded: `berth policy test` tests them on the present ones"
        )
    return changed if changes else replace(changed, only_numbers=ChangedNumbers())


def _show_changes(cli: Cli, result: ReplayResult, period: float, took: float) -> None:
    changes = result.last - result.first
    speed = f" ({period / took:,.0f} × real time)" if took > 0 else ""
    cli.line(
        f"{changes:,} changes in {duration(took)}{speed}; consumers: {result.placed:,} placed,"
        f" {result.changed:,} changed, {result.deleted:,} deleted"
    )
    rows = [(name, before, after, f"{after - before:+}") for name, (before, after) in result.used.items()]
    cli.say.print(plain_table(("class", "used before", "used after", "difference"), rows))
    if result.is_proven:
        cli.line("the state at the end equals the one that a stored snapshot leads to", "dim")
