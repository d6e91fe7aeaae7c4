"""`berth ironic`: compares Ironic with placement, removes deleted nodes, and runs a simulated Ironic."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from berth.commands import ironic_nodes
from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.listing import ListCli, Ranked, plain_table
from berth.kit.options import option
from berth.kit.running import effective
from berth.kit.terminal import Cli, complain, say
from berth.services import settle_in, stop_on_signals
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock, time_text
from bus.errors import OperationRefused
from compute_sim.core.faults import Durations
from control_room.kit.words import duration

if TYPE_CHECKING:  # HTTP clients load slowly, and most commands work without them
    from bus.delivery.recording import RecordingBus
    from compute_sim.ironic.simulation import Simulation
    from ironic_sync.survey import Survey
    from ironic_sync.worker import FollowedIronic

_DEALT = "Dealt out over the nodes"


@dataclass(frozen=True)
class SimulatedIronicOptions:
    nodes: int = option(100, "How many nodes it has at first.", min=0)
    http: str = option("127.0.0.1:6385", "HOST:PORT of its API; port 0: any free port.", metavar="HOST:PORT")
    amqp_url: str = option(
        "", "The RabbitMQ that it notifies (default: the one that berth consumes from, or uses; else none)."
    )
    exchange: str = option("ironic", "Its exchange there.")
    state: str = option("available", "The nodes' provision state: enroll, manageable, available, ...")
    resource_classes: list[str] | None = option(
        None, f"{_DEALT} (default: baremetal); may be repeated.", "--resource-class"
    )
    conductor_groups: list[str] | None = option(None, f"{_DEALT}; may be repeated.", "--conductor-group")
    step_time: str = option(
        "exponential:1",
        "How long an operation takes: constant:1, uniform:1,3, exponential:1, lognormal:1,0.5.",
    )
    call_back: bool = option(False, "Operations wait for the node to call back, as on real metal.")
    fail: float = option(0.0, "Share of operations that fail.", min=0, max=1)
    churn: float = option(0.0, "Notifications it makes by itself, always.", metavar="EVENTS_PER_S", min=0)
    seed: int = option(1, "Of names, times, failures and churn.")


commands = Commands()
ironic = Commands(no_args_is_help=True)
commands.add_typer(ironic, name="ironic")
ironic.add_typer(ironic_nodes.commands, name="node")

OnlyJson = Annotated[Cli, "Print JSON.", "without --state-dir"]


@ironic.command("diff")
async def diff_command(cli: OnlyJson) -> int:
    """Show, for each bare-metal node, how Ironic and placement differ; exit 1 if they differ."""
    from ironic_sync.comparison import diff

    async with _surveyed(cli) as (bus, followed, survey):
        compared = await diff(survey, bus.asker(topics.ALLOCATIONS))
    cli.rows(compared.differences, "\n".join(map(escape, compared.lines(followed.share_gone))))
    return 1 if compared.differences else 0


@ironic.command("sweep")
async def sweep_command(
    cli: Annotated[ActCli, "Print JSON.", "without --state-dir"],
    allow_removals: bool = option(False, "Remove any number of nodes: they were really deleted."),
) -> None:
    """Remove bare-metal nodes from placement that no longer exist in Ironic.

    The ironic worker repairs all other differences.
    """
    from ironic_sync.comparison import remove_missing

    async with _surveyed(cli) as (bus, followed, survey):
        publish = bus.rehearse if cli.dry_run else bus.publish
        done = await remove_missing(followed, survey, publish, bus.clock, allow=allow_removals)
    for uuid, name in done.removed.items():
        cli.tell(f"{name or uuid}: {cli.becomes('removed')}", node=uuid, name=name, gone=True)
    if done.held_back:
        raise OperationRefused(
            f"at least {done.held_back} nodes are missing in Ironic, more at once than is plausible: no "
            "node was removed; if they were deleted, use --allow-removals"
        )
    if not cli.as_json:
        removed = cli.becomes("removed")
        cli.say.print(f"{len(done.removed)} nodes were deleted, and {removed} from placement")


@ironic.command("stuck")
async def stuck_command(cli: ListCli) -> int:
    """List the bare-metal nodes that offer nothing for too long, since when and why; exit 1 if there are any.

    Placement's record of Ironic's notifications decides; if Ironic's API is configured, its last error is
    added. A node that failed, or whose power is unknown, is stuck after 10 minutes; one that is cleaned after
    4 hours; one in maintenance after 7 days.
    """
    from berth.control_room_metal import metal

    async with cli.bus("ironic stuck") as bus:
        nodes, now = await metal(cli.settings, bus), bus.clock.now()
    if nodes.placement_problem:
        raise OperationRefused(f"placement does not answer: {nodes.placement_problem}")
    if nodes.ironic_problem:
        complain.print(f"Ironic does not answer: {nodes.ironic_problem}", markup=False)
    found = nodes.stuck(now)
    rows = [
        (node.name, node.cell, node.reason, time_text(node.since),
         Ranked(duration(now - node.since) if node.since else "-", now - node.since), node.why, node.node)
        for node in found
    ]  # fmt: skip
    titles = ("node", "cell", "state", "since", "for", "why", "uuid")
    cli.rows(found, plain_table(titles, rows, wide=("uuid",)) if rows else "no node is stuck")
    return 1 if found else 0


@asynccontextmanager
async def _surveyed(cli: Cli) -> AsyncIterator[tuple["RecordingBus", "FollowedIronic", "Survey"]]:
    """Yield a message bus, the client of Ironic's API with the selection of nodes, and an object that
    compares the nodes with placement.
    """
    from berth.ironic import followed
    from ironic_sync.api import IronicRefused
    from ironic_sync.comparison import survey_of

    found = followed(cli.settings.having(ironic_amqp_url=""), Clock())
    if found.api is None:
        raise OperationRefused("this takes Ironic's API: set BERTH_IRONIC_API")
    async with cli.bus("ironic diff") as bus, found.api:
        try:
            yield bus, found, survey_of(found, found.api, bus.asker(topics.PROVIDERS), bus.clock)
        except IronicRefused as refused:
            raise OperationRefused(str(refused)) from None


@ironic.command("sim")
async def sim(options: SimulatedIronicOptions) -> None:
    """Run a simulated Ironic until Ctrl-C, with real states, API and notifications but without hardware."""
    from compute_sim.ironic.states import STATES

    if options.state not in STATES:
        known = ", ".join(STATES)
        raise BadSetting(f"--state {options.state!r}: there is no such state; there are: {known}")
    settings = effective().settings
    try:
        simulation, place = _simulation(options, settings.ironic.connection.amqp_url or settings.bus.amqp_url)
    except ValueError as problem:
        raise BadSetting(str(problem)) from None
    operations = f"an operation takes {options.step_time} s"
    say.print(f"a simulated Ironic: {options.nodes} nodes, {options.state}; {operations}", markup=False)
    for line in _lines(simulation.url, place, options):
        say.print(f"  {line}", markup=False)
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    settle_in()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(simulation.run())
        say.print("Ctrl-C stops it.")
        await stopping.wait()
        running.cancel()
    say.print(f"stopped after {simulation.sent} notifications")


def _simulation(options: SimulatedIronicOptions, broker: str) -> tuple["Simulation", str]:
    """Return a simulated Ironic, and the address of the AMQP exchange for its notifications ("": none).

    `broker` is the RabbitMQ for notifications if the options name none ("": send no notifications).
    """
    from bus.http import listen
    from bus.rabbit.foreign.publisher import ForeignPublisher
    from compute_sim.ironic.conductor import SimPlan
    from compute_sim.ironic.node import enrolled
    from compute_sim.ironic.notifications import MOST_WAITING, IronicExchange
    from compute_sim.ironic.simulation import Simulation

    plan = SimPlan(
        seed=options.seed, step_time=Durations.parse(options.step_time), fail=options.fail,
        call_back=options.call_back, churn=options.churn,
    )  # fmt: skip
    url = options.amqp_url or broker
    publisher = sink = None
    if url:
        publisher = ForeignPublisher(url, options.exchange, "simulated Ironic", limit=MOST_WAITING)
        sink = IronicExchange(publisher)
    nodes = enrolled(
        options.nodes, now=Clock().now(), seed=options.seed, state=options.state,
        resource_classes=options.resource_classes or ("baremetal",),
        conductor_groups=options.conductor_groups or ("",),
    )  # fmt: skip
    simulation = Simulation(nodes, plan=plan, sink=sink, listener=listen(options.http))
    return simulation, publisher.place if publisher else ""


def _lines(url: str, place: str, options: SimulatedIronicOptions) -> Iterator[str]:
    yield f"API: {url}"
    yield f"list the nodes: berth ironic node list --url {url}"
    yield f"notifications: {f'to {place}' if place else 'none, there is no --amqp-url'}"
    if options.churn:
        yield f"churn: {options.churn:g} notifications a second"
    if options.fail:
        yield f"failures: {options.fail:.0%} of all operations"
