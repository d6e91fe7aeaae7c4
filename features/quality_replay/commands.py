"""`berth policy quality`: replays the recorded requests of a past period with other placement profiles."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from berth.kit import (
    BadSetting,
    Cli,
    Commands,
    Settings,
    choice_policy,
    option,
    plain_table,
    progress_bar,
    seconds_since,
)
from bus.clock import Clock, moment_text
from bus.errors import OperationRefused
from control_room.kit import several
from features.policies.policy_changes import FORMS, changed_policy
from features.policies.trials import tried_policy
from features.quality_replay.period import PeriodOutcome, RecordedArrival, RecordedPeriod
from features.quality_replay.reading import UNKNOWN, read_period
from features.quality_replay.replaying import QualityReplay
from scheduler_worker.extension import PROFILES, BadChoice, ChoicePolicy

commands = Commands()

NEARLY = 0.9  # share of the time for which records are stored; an older record may be deleted
LATER = 60.0  # seconds after the requested begin, from which on a later begin is worth a note


@dataclass(frozen=True)
class QualityOptions:
    from_history: bool = option(False, "Replay this region's own recorded requests.", "--from-history")
    since: str = option("7d", "Requests of this time: 90s, 30m, 12h, 7d.")
    profile: list[str] | None = option(
        None, "Compare with this placement profile; may be repeated (default: with all).", metavar="NAME"
    )
    changes: list[str] | None = option(
        None,
        f"Compare with the settings and these changes together: {FORMS}; may be repeated.",
        "--with",
        metavar="CHANGE",
    )


@commands.command("quality")
async def quality_command(cli: Cli, options: QualityOptions) -> None:
    """Replay recorded requests with other placement profiles: how many hosts would have been saved, and how
    many more requests would have got a host?

    Example: `berth policy quality --from-history --since 7d --profile pack`. The replay begins with the hosts
    and instances of that time. Each later request is decided anew by the scheduler's code, in memory, and its
    instance ends when it really ended. The first line shows what really happened, the second one a replay
    with the profile in force: compare other profiles with the second one. Nothing is claimed.
    """
    if not options.from_history:
        raise BadSetting(
            "berth policy quality needs --from-history: it replays this region's recorded requests"
            " (public traces: see docs/quality.md)"
        )
    compared = policies(cli.settings, options.profile or (), options.changes or ())
    now = Clock().now()
    since = max(now - seconds_since(options.since), 0.0)
    with progress_bar() as bar:
        shown = {what: bar.add_task(what, total=None) for what in ("changes", "records")}
        async with cli.bus("quality") as bus:
            read = lambda what, number: bar.advance(shown[what], number)  # noqa: E731
            period = await read_period(bus, cli.settings, since, now, read)
    if not any(isinstance(event, RecordedArrival) for event in period.events):
        raise OperationRefused(f"no request is recorded since {moment_text(period.begin)}")
    outcomes = {}
    with progress_bar() as bar:
        for name, chosen in compared.items():
            replayed = bar.add_task(name, total=len(period.events))
            replay = QualityReplay(period, chosen, cli.settings)
            outcomes[name] = await replay.run(partial(bar.advance, replayed))
    _show(cli, period, outcomes, since)


def policies(settings: Settings, profiles: Sequence[str], changes: Sequence[str]) -> dict[str, ChoicePolicy]:
    """Return the policy in force, and then the policies to compare with, by their names for the table. Raise
    BadSetting for an unknown profile, and for a change that has no effect on where requests are placed.
    """
    in_force = choice_policy(settings)
    present = in_force.profile
    for name in profiles:
        if name not in PROFILES:
            raise BadSetting(f"--profile {name}: no such profile; there are: {', '.join(PROFILES)}")
    named = profiles or (() if changes else [name for name in PROFILES if name != present])
    found = {f"{present} (in force)": in_force}
    found |= {
        name: choice_policy(settings.having(placement_profile=name)) for name in named if name != present
    }
    if changes:
        changed = changed_policy(settings, changes)
        if changed.stored:
            names = " and ".join(each.subject for each in changed.stored)
            raise BadSetting(f"--with: {names} are not replayed")
        try:
            found[f"{present} with {' '.join(changes)}"] = tried_policy(in_force, changed.trial)
        except BadChoice as problem:
            raise BadSetting(f"--with: {problem}") from None
    return found


def _show(cli: Cli, period: RecordedPeriod, outcomes: Mapping[str, PeriodOutcome], since: float) -> None:
    assert period.recorded is not None
    every = {"as recorded": period.recorded, **outcomes}
    notes = list(unknown_of(period, since, cli.settings.keep.ended, outcomes))
    if cli.as_json:
        facts = {"from": period.begin, "to": period.end, "at_begin": len(period.cloud.consumers)}
        cli.value(
            {**facts, "outcomes": {name: asdict(each) for name, each in every.items()}, "notes": notes}, ""
        )
        return
    requested, hosts = several(period.recorded.requested, "requested instance"), period.recorded.hosts
    before = several(len(period.cloud.consumers), "instance")
    cli.line(f"from {moment_text(period.begin)} to {moment_text(period.end)}")
    cli.line(f"{requested}, {several(hosts, 'host')}, {before} at the begin")
    titles = ("", "no host", "hosts in use: mean", "most", "at the end", "empty at the end")
    rows = [
        (
            name,
            f"{each.refused:,}",
            f"{each.mean_hosts:,.1f}",
            f"{each.most_hosts:,}",
            f"{each.hosts - each.empty_hosts:,}",
            f"{each.empty_hosts:,}",
        )
        for name, each in every.items()
    ]
    cli.say.print(plain_table(titles, rows))
    usual = period.recorded.fits
    fits = [(name, *(f"{each.fits[flavor]:,}" for flavor in usual)) for name, each in every.items()]
    cli.line("instances that would still fit at the end, if no other flavor is built:")
    cli.say.print(plain_table(("", *usual), fits))
    in_force, *others = outcomes.items()
    for name, outcome in others:
        cli.line(difference(name, outcome, in_force[1]))
    for note in notes:
        cli.line(f"- {note}", "dim")


def difference(name: str, outcome: PeriodOutcome, in_force: PeriodOutcome) -> str:
    """Return a sentence that compares a replay with that of the profile in force."""
    mean, most = in_force.mean_hosts - outcome.mean_hosts, in_force.most_hosts - outcome.most_hosts
    more = in_force.refused - outcome.refused
    return (
        f"{name}: {abs(mean):,.1f} hosts {'more' if mean < 0 else 'fewer'} in use on average,"
        f" {abs(most):,} {'more' if most < 0 else 'fewer'} at the peak, and"
        f" {several(abs(more), 'instance')} {'fewer' if more < 0 else 'more'} with a host"
    )


def unknown_of(
    period: RecordedPeriod, since: float, keep: float, outcomes: Mapping[str, PeriodOutcome]
) -> Iterator[str]:
    """Yield a sentence for each thing that a replay of the period supposes or cannot know. `keep`: for how
    many seconds records are stored.
    """
    if period.begin > since + LATER:
        why = "this region's history began then"
        if period.end - period.begin > keep * NEARLY:
            why = "the setting `keep` limits how long records are stored"
        yield f"nothing is recorded before {moment_text(period.begin)}: {why}"
    yield ("instances of the begin keep their hosts, so a longer period shows more of what a profile does")
    yield (
        "all hosts count as up and idle: loads, cached images, running builds and failures are not recorded"
    )
    sentences = UNKNOWN | {each.unknown: each.sentence for each in period.conditions}
    for name, sentence in sentences.items():
        if number := period.unknown[name]:
            yield f"{number:,} {sentence}"
    if gained := max(each.gained for each in outcomes.values()):
        yield (
            f"up to {gained:,} instances got a host only in a replay: they stay as long as the median one of"
            " their flavor"
        )
