"""`berth ironic`: what differs between Ironic and placement, a simulated Ironic, and `berth ironic node`."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console

from berth.commands import terminal
from berth.commands.ironic_nodes import node_commands
from berth.commands.ironic_trouble import Run
from berth.commands.options import Json
from berth.commands.terminal import tell, write_json
from berth.configuration import Effective
from berth.services import settle_in, stop_on_signals
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from compute_sim import Durations

if TYPE_CHECKING:  # HTTP clients load slowly, and most commands need none
    from bus.protocol import Transport
    from compute_sim.ironic import IronicExchange, SimPlan, Simulation
    from ironic_sync import FollowedIronic, IronicApi

Count = Annotated[int, typer.Option(min=0, help="How many nodes it has at first.")]
Http = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where its API is; port 0 is any, empty nowhere.")
]
AmqpUrl = Annotated[
    str, typer.Option(help="The RabbitMQ it notifies (default: where berth hears it, or is; else nobody).")
]
Exchange = Annotated[str, typer.Option(help="Its exchange there.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Its topics (default: ironic_versioned_notifications); may be repeated."),
]
State = Annotated[str, typer.Option(help="Where the nodes are: enroll, manageable, available, ...")]
Classes = Annotated[
    list[str] | None,
    typer.Option("--resource-class", help="Dealt out over the nodes (default: baremetal); may be repeated."),
]
Groups = Annotated[
    list[str] | None, typer.Option("--conductor-group", help="Dealt out over the nodes; may be repeated.")
]
StepTime = Annotated[
    str, typer.Option(help="How long a work takes: constant:1, uniform:1,3, exponential:1, lognormal:1,0.5.")
]
CallBack = Annotated[
    bool, typer.Option("--call-back", help="Works wait for the node to call back, as on real metal.")
]
Fail = Annotated[float, typer.Option(min=0, max=1, help="Share of works that fail.")]
Lossy = Annotated[float, typer.Option(min=0, max=1, help="Share of the later steps nobody is told of.")]
Rate = Annotated[
    float, typer.Option(metavar="EVENTS_PER_S", min=0, help="Notifications it makes by itself, all day long.")
]
Confirms = Annotated[bool, typer.Option(help="Wait for the broker to confirm each notification.")]
Seed = Annotated[int, typer.Option(help="Of names, times, failures and churn.")]
User = Annotated[str, typer.Option(help="Let in this user only (basic authentication).")]
Password = Annotated[str, typer.Option(envvar="BERTH_SIM_IRONIC_PASSWORD", help="The user's password.")]


class Sides(NamedTuple):
    """The Ironic that is followed, and the way to placement."""

    ironic: "FollowedIronic"
    transport: "Transport"

    @property
    def api(self) -> "IronicApi":
        if self.ironic.api is None:
            raise OperationRefused("this takes Ironic's API: set BERTH_IRONIC_API_URL")
        return self.ironic.api


def ironic_commands(settings: Callable[[], Effective], run: Run, say: Console) -> typer.Typer:
    """Return the sub-commands of `berth ironic`."""
    app = typer.Typer(
        no_args_is_help=True,
        help="Ironic: what differs between it and placement, the nodes of any, and a simulated one.",
    )
    app.add_typer(node_commands(settings, run, say), name="node")

    add_diff(app, lambda: sides_of(settings().settings), run, say)

    @app.command()
    def sim(
        nodes: Count = 100,
        http: Http = "127.0.0.1:6385",
        amqp_url: AmqpUrl = "",
        exchange: Exchange = "ironic",
        topics: Topics = None,
        state: State = "available",
        resource_classes: Classes = None,
        conductor_groups: Groups = None,
        step_time: StepTime = "exponential:1",
        call_back: CallBack = False,
        fail: Fail = 0.0,
        lossy: Lossy = 0.0,
        churn: Rate = 0.0,
        confirms: Confirms = True,
        seed: Seed = 1,
        user: User = "",
        password: Password = "",
    ) -> None:
        """Run a simulated Ironic until Ctrl-C: a real one's states, API and notifications, without metal."""
        from bus.http import listen
        from compute_sim.ironic import IronicExchange, SimPlan, Simulation, enrolled
        from compute_sim.ironic.node import PATHS
        from compute_sim.ironic.notify import TOPICS

        if state not in PATHS:
            raise BadSetting(f"--state {state!r}: there is no such state; there are: {', '.join(PATHS)}")
        known = settings().settings
        url = amqp_url or known.ironic.news.amqp_url or known.bus.amqp_url
        try:
            times = Durations.parse(step_time)
            plan = SimPlan(seed=seed, step_time=times, fail=fail, call_back=call_back, churn=churn)
            voice = IronicExchange(
                url, exchange=exchange, topics=topics or TOPICS, confirms=confirms, lossy=lossy, seed=seed
            ) if url else None  # fmt: skip
            listener = listen(http) if http else None
        except ValueError as problem:
            raise BadSetting(str(problem)) from None
        herd = enrolled(
            nodes,
            now=Clock().now(),
            seed=seed,
            state=state,
            resource_classes=resource_classes or ("baremetal",),
            conductor_groups=conductor_groups or ("",),
        )
        simulation = Simulation(herd, plan=plan, voice=voice, listener=listener, login=(user, password))
        say.print(f"a simulated Ironic: {nodes} nodes, {state}; a work takes {step_time} s", markup=False)
        _say_where(simulation, plan, voice, churn, user, say)
        run(_until_stopped(simulation, say))

    return app


def add_diff(app: typer.Typer, sides: Callable[[], Sides], run: Run, say: Console) -> None:
    """Add the sub-commands that read both Ironic and placement."""

    @app.command("diff")
    def diff(as_json: Json = False) -> None:
        """Show node by node what differs between Ironic and placement; exit 1 when something does."""
        run(show_diff(sides(), as_json, say))

    @app.command("sweep")
    def sweep(
        allow_removals: Annotated[
            bool, typer.Option("--allow-removals", help="However many they are: they are gone indeed.")
        ] = False,
        as_json: Json = False,
    ) -> None:
        """Remove nodes from placement that no longer exist in Ironic.

        The ironic worker repairs all other differences.
        """
        run(sweep_gone(sides(), allow_removals, say, as_json))


def sides_of(settings: Settings) -> Sides:
    from berth.ironic import followed
    from berth.wiring import transport

    return Sides(followed(settings.having(ironic_amqp_url=""), Clock()), transport(settings, "ironic diff"))


async def show_diff(sides: Sides, as_json: bool, say: Console) -> int:
    from ironic_sync.comparison import diff, survey_of

    api = sides.api
    async with Bus(sides.transport) as bus, api:
        survey = survey_of(sides.ironic, api, bus.asker(topics.PROVIDERS), bus.clock)
        with _in_words():
            compared = await diff(survey, bus.asker(topics.ALLOCATIONS))
    if as_json:
        for difference in compared.differences:
            write_json(difference)
    else:
        for line in compared.lines(sides.ironic.share_gone):
            say.print(line, markup=False)
    return 1 if compared.differences else 0


async def sweep_gone(sides: Sides, allow_removals: bool, say: Console, as_json: bool = False) -> int:
    from ironic_sync.comparison import remove_gone, survey_of

    api = sides.api
    async with Bus(sides.transport) as bus, api:
        survey = survey_of(sides.ironic, api, bus.asker(topics.PROVIDERS), bus.clock)
        with _in_words():
            done = await remove_gone(sides.ironic, survey, bus.publish, bus.clock, allow=allow_removals)
    for uuid in done.removed:
        tell(say, as_json, f"{uuid}: gone", node=uuid, gone=True)
    if done.held_back:
        raise OperationRefused(
            f"at least {done.held_back} nodes are gone from Ironic, more at once than is believed: none was"
            f" removed; if it is so, say --allow-removals"
        )
    if not as_json:
        say.print(f"{len(done.removed)} nodes are gone, and taken out of placement")
    return 0


@contextmanager
def _in_words() -> Iterator[None]:
    from ironic_sync.api import IronicRefused

    try:
        yield
    except IronicRefused as refused:
        raise OperationRefused(str(refused)) from None


def _say_where(
    simulation: "Simulation",
    plan: "SimPlan",
    voice: "IronicExchange | None",
    churn: float,
    user: str,
    say: Console,
) -> None:
    lines = []
    if simulation.url:
        lines.append(f"API: {simulation.url}, for {user or 'everybody'}")
        lines.append(f"look: berth ironic node list --url {simulation.url}")
    lines.append(f"notifications: {f'to {voice.place}' if voice else 'none, there is no --amqp-url'}")
    if churn:
        lines.append(f"churn: {churn:g} notifications a second")
    if plan.fail:
        lines.append(f"failures: {plan.fail:.0%} of all works")
    for line in lines:
        say.print(f"  {line}", markup=False)


async def _until_stopped(simulation: "Simulation", say: Console) -> int:
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    settle_in()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(simulation.run())
        say.print("Ctrl-C stops it.")
        await stopping.wait()
        running.cancel()
    say.print(f"stopped after {simulation.sent} notifications")
    return 0


commands = typer.Typer()
commands.add_typer(ironic_commands(terminal.effective, terminal.run, terminal.say), name="ironic")
