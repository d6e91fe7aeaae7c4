"""`berth why`: shows why a build is on its host or has no host, and repeats recorded decisions."""

from berth.features import added
from berth.kit.builds import whole_id
from berth.kit.command_groups import Commands
from berth.kit.options import option
from berth.kit.record_output import show_records
from berth.kit.record_queries import ExplainedId, ExplainingPart, KnownRecords, known_records, timeline
from berth.kit.terminal import Cli
from berth.kit.timeline import show_timeline
from berth.settings import BadSetting
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable

commands = Commands()


@commands.command("why")
async def why_command(
    cli: Cli,
    build: ExplainedId,
    again: bool = option(
        False, "Repeat the recorded decision; exit 1 unless it is the same host.", "--replay"
    ),
    now: bool = option(
        False,
        "The decision with the present hosts and rules; for a placed build: of one instance of its flavor.",
    ),
    story: bool = option(False, "What happened to it, by time, and who requested it.", "--timeline"),
) -> int:
    """Explain why a build is on its host or has no host, or why a move chose its host, waits or was refused.

    The output shows the considered hosts, how many of them each filter and requested resource rejected, the
    weights of the best hosts, and later refused claims, attempts and alternates. For a build without a host
    it shows the closest hosts, and what would help.
    """
    if again + now + story > 1:
        raise BadSetting("use one: --replay repeats the decision, --now decides anew, --timeline tells all")
    return await tell_story(cli, build) if story else await why(cli, build, again, now)


async def tell_story(cli: Cli, given: str) -> int:
    """Print what happened to a build or request, by time."""
    async with cli.bus("why") as bus:
        id_ = await whole_id(bus, cli.settings, given, "a build or request")
        known = await known_records(cli.settings, bus, id_)
        found = await timeline(cli.settings, bus, known, id_)
    show_timeline(found, cli, "no times are recorded")
    return 0


async def why(cli: Cli, given: str, again: bool, now: bool) -> int:
    """Print why a request or build got its host or none; `again` decides anew, `now` asks a scheduler at
    present.
    """
    async with cli.bus("why") as bus:
        id_ = await whole_id(bus, cli.settings, given, "a build or request")
        known = await known_records(cli.settings, bus, id_)
        if now:
            return await _ask_now(cli, bus, known)
    if again:
        return _repeat_decisions(cli, known)
    show_records(cli, known)
    return 0


def _repeat_decisions(cli: Cli, known: KnownRecords) -> int:
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


async def _ask_now(cli: Cli, bus: Bus, known: KnownRecords) -> int:
    """Let the feature answer that the present decision about these records is of; return the exit code."""
    for part in added(ExplainingPart, "explaining"):
        if part.decide_now is not None and (code := await part.decide_now(cli, bus, known)) is not None:
            return code
    raise BadSetting("--now: no feature of this berth has this option")
