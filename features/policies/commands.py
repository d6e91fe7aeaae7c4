"""`berth policy test` tests changes of filters and weighers on recorded decisions."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from berth.kit import (
    Cli,
    Commands,
    added,
    complain,
    option,
    plain_table,
    progress_bar,
    seconds_since,
    write_json,
)
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.masking import printable
from control_room.kit import several
from features.policies.decisions import RepeatedDecision
from features.policies.policy_changes import FORMS, changed_policy
from features.policies.policy_tests import Gathered, PolicyTest, recorded_decisions, tested
from features.policies.stored_changes import MODULE, ChangesPart

commands = Commands()

NOT_POSSIBLE = 2
_SAYS = {
    "same": "the same host",
    "elsewhere": "another host",
    "nowhere": "no host any more",
    "placed": "a host, which they do not get now",
    "none": "no host with either policy",
}


_FORMS_OF_OTHERS = [part.forms for part in added(ChangesPart, MODULE) if part.forms]


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """The recorded decisions that are made again, and the differences that are accepted and listed."""

    project: str = option("", "Only decisions of this project.")
    allow: float = option(0.0, "Exit with 0 if at most this percentage differs.", min=0, max=100)
    limit: int = option(1000, "The number of decisions, the newest.", min=1)
    listed: int = option(20, "The number of differences listed; --json lists all decisions.", "--list", min=0)


@dataclass(frozen=True, kw_only=True)
class PolicyTestOptions(ComparisonOptions):
    since: str = option("7d", "Decisions of this time: 90s, 30m, 12h, 7d.")
    changes: list[str] | None = option(
        None,
        f"{', '.join((FORMS, *_FORMS_OF_OTHERS))}, or a settings file; may be repeated.",
        "--with",
        metavar="CHANGE",
    )


@commands.command("test")
async def test_command(cli: Cli, options: PolicyTestOptions) -> int:
    """Test a changed policy on recorded decisions: which requests would get another host, or none?

    Example: `berth policy test --since 7d --with weights.ram=-1`. Without --with, the settings of this
    command are tested against the policy of the running schedulers: run it before you restart them.

    A change of multipliers, `subset` and `near` alone is tested with the hosts and values that each decision
    recorded: its best hosts at that time. Any other change whose effect the record does not show, and each
    request that got no host, is tested with the PRESENT hosts, with and without the change: the state of all
    hosts at that time is not recorded.
    An instance that still exists is tried as one more instance. Nothing is claimed. Changed limits are tested
    on the decisions of each project, the oldest first.

    Exit code: 0 no difference, or within --allow; 1 differences; 2 the test is not possible.
    """
    changed = changed_policy(cli.settings, options.changes or [])
    since = max(Clock().now() - seconds_since(options.since), 0.0)
    async with cli.bus("rules test") as bus:
        try:
            changed = await changed.completed(bus)
            found = await _gathered(bus, cli, since, options)
            with progress_bar() as bar:
                shown = bar.add_task("decisions", total=len(found.decisions))
                decisions = await tested(
                    bus, found.decisions, changed, lambda several: bar.advance(shown, several)
                )
            for stored in changed.stored:
                decisions = await stored.repeated(bus, found.decisions, decisions)
        except (OperationRefused, Unavailable, Unroutable) as problem:
            complain.print(escape(printable(f"the test is not possible: {problem}")), style="red")
            return NOT_POSSIBLE
    result = PolicyTest(decisions)
    show_test(cli, result, options.listed, found.omitted)
    return 0 if result.passes(options.allow) else 1


async def _gathered(bus: Bus, cli: Cli, since: float, options: PolicyTestOptions) -> Gathered:
    found = await recorded_decisions(bus, cli.settings, since, options.project, options.limit)
    if not found.decisions:
        raise OperationRefused(f"no decision of the last {options.since} is recorded")
    return found


def show_test(cli: Cli, result: PolicyTest, listed: int, omitted: int) -> None:
    """Print the numbers of equal, different and `omitted` decisions, and at most `listed` differences."""
    if cli.as_json:
        for decision in result.decisions:
            write_json(decision)
        return
    recorded = sum(decision.by == "record" for decision in result.decisions)
    total = len(result.decisions)
    others = next((each.by for each in result.decisions if each.by != "record"), "present hosts")
    cli.line(f"{total} decisions: {recorded} from their records, {total - recorded} with the {others}")
    for verdict, count in result.counts.items():
        if count:
            share = f"{100 * count / total:.1f} %"
            cli.line(f"{count:>7} ({share}) would get {_SAYS[verdict]}")
    if omitted:
        cli.line(f"{omitted} older decisions are not tested: --limit tests more", "dim")
    if result.differences and listed:
        cli.say.print(_table(result.differences[:listed]))
    if len(result.differences) > listed:
        cli.line(f"... and {len(result.differences) - listed} more: --list shows them", "dim")


def _table(decisions: Sequence[RepeatedDecision]) -> Table:
    rows = [
        (
            decision.build, decision.flavor, decision.project, decision.before or "-", _after(decision),
            decision.by, decision.why,
        )
        for decision in decisions
    ]  # fmt: skip
    titles = ("build", "flavor", "project", "host", "with the change", "by", "why no host")
    return plain_table(titles, rows, folded=("why no host",))


def _after(decision: RepeatedDecision) -> str:
    replaces = f", replaces {several(decision.replaces, 'instance')}" if decision.replaces else ""
    return f"{decision.after}{replaces}" if decision.after else "-"
