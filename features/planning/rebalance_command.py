"""`berth move rebalance` moves instances from full hosts to emptier ones, or so that more is usable."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import structs

from berth.kit import (
    ActCli,
    BadSetting,
    Cli,
    Commands,
    chosen_cells,
    complain,
    option,
    positional,
    waiting_time,
    write_json,
)
from bus.clock import Clock
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.parts import PlanParts
from bus.vocabulary import seconds_of
from control_room.kit import several
from features.moves.commands.moves import PlanPrinter
from features.moves.messages import FIND_PLANS, FindPlans, PlanOfMoves, PlanStands, StopPlan
from features.moves.plan_requests import plan_sentence, rehearse_plan, start_plan
from features.planning.make_room_command import step_line
from features.planning.messages import (
    MOST_MOVES,
    PLAN_BALANCE,
    BalancePlanned,
    Balancing,
    PlanBalance,
    PlanningGoal,
    balancing_goal,
)
from features.planning.running_rebalancings import running_rebalancings, stop_rebalancings

commands = Commands()

_TAKEN = "another plan rebalances with other options: `berth move rebalance stop` ends it"
_ACTIONS = {"stop": stop_rebalancings, "status": running_rebalancings}
ANSWER_SECONDS = 60.0  # until a scheduler has planned


@dataclass(frozen=True)
class RebalanceOptions:
    action: Annotated[
        str, positional("`stop` ends all rebalancings; `status` shows those that run.", metavar="ACTION")
    ] = ""
    cell: str = option("", "Only hosts of this cell.")
    goal: Literal["spread", "usable"] | None = option(
        None, "What moves are for (default: by the placement profile)."
    )
    resource_class: str = option(
        "", "With the goal spread: the resource whose used share is compared (VCPU).", "--class"
    )
    gain: float | None = option(
        None,
        "Of each move at least: the fuller host becomes emptier by so much (0.1), or so much more of a host"
        " is usable (0.05).",
        min=0.001,
        max=1,
    )
    above: float = option(
        0.0, "With the goal spread: only hosts that are fuller become emptier: 0.8.", min=0, max=1
    )
    budget: int = option(10, "So many moves at most.", min=1, max=MOST_MOVES, metavar="MOVES")
    most: int = option(2, "So many moves at a time.", "--max", min=1, metavar="N")
    live: bool = option(True, "Instances run on while they move; or are stopped first.", "--live/--cold")
    keep: bool = option(
        False, "Run until `berth move rebalance stop`: move instances again when it is necessary."
    )
    hold: str = option("5m", "With --keep: only what was necessary for so long.", metavar="TIME")


@commands.command("rebalance")
async def rebalance_command(cli: ActCli, options: RebalanceOptions) -> int:
    """Move instances so that hosts are more equal, or what is free is more usable, each for a stated gain.

    With the goal spread, the gain of a move is by how much the fuller of its two hosts becomes emptier: with
    --gain 0.1 no instance moves from a host at 80 % to one that is at more than 70 % afterwards. With the
    goal usable, the gain is how much more of the two hosts the usual requests could use, as a share of an
    average host. It is the default if the placement profile is balanced or pack.

    If at least half of the moves fail, the others are undone. Schedulers carry it out, also if this command
    is killed; Ctrl-C lets the moves in progress end. With --keep they go on until `berth move rebalance
    stop`: one such plan runs at a time, and a second command with the same options follows it.
    """
    async with cli.bus("rebalance") as bus:
        if options.action:
            if options.action not in _ACTIONS:
                raise BadSetting(f"{options.action!r}: {', '.join(_ACTIONS)}, or nothing")
            if cli.dry_run and options.action == "stop":
                await _rehearse_stop(cli, bus)
            else:
                _print_plans(cli, await _ACTIONS[options.action](bus))
            return 0
        if options.cell:
            await chosen_cells(bus, cli.settings, [options.cell])
        asked = query_of(options)
        printer = BalancePrinter(cli, "live" if options.live else "migrate")
        if cli.dry_run:
            await rehearse_plan(bus, _plan_of(Balancing(query=asked), options))
            printer.planned(await _planned(bus, asked))
            return 0
        if options.keep:
            hold = seconds_of(waiting_time(options.hold))
            await _followed(
                bus, Balancing(query=asked, keeps_on=True, hold=hold, plans=True), options, printer
            )
            cli.line("rebalancing is stopped")
            return 0
        plan = await _planned(bus, asked)
        printer.planned(plan)
        if not plan.moves:
            return 0
        asked = structs.replace(asked, goal=plan.goal)  # also if the profile changes meanwhile
        goal = await _followed(bus, Balancing(query=asked, planned=plan.moves), options, printer)
    ends = {
        "moved": len(goal.moved), "undone": len(goal.undone), "failed": goal.failed,
        "why_undone": goal.why_undone,
    }  # fmt: skip
    sentence = f"{len(goal.moved)} moved, {len(goal.undone)} moved back, {len(goal.failed)} not moved"
    cli.tell(f"{sentence}: {goal.why_undone}" if goal.why_undone else sentence, **ends)
    return 1 if goal.failed else 0


def query_of(options: RebalanceOptions) -> PlanBalance:
    """Return the query for a plan; raise BadSetting if the options contradict each other."""
    of_spread = [
        name for name, given in (("--class", options.resource_class), ("--above", options.above)) if given
    ]
    if of_spread and options.goal == "usable":
        raise BadSetting(f"{of_spread[0]}: only with --goal spread")
    return PlanBalance(
        goal="spread" if of_spread else options.goal or "", cell=options.cell,
        resource_class=options.resource_class or "VCPU", budget=options.budget, gain=options.gain,
        above=options.above, cold=not options.live,
    )  # fmt: skip


async def _planned(bus: Bus, asked: PlanBalance) -> BalancePlanned:
    return await bus.asker(PLAN_BALANCE, timeout=ANSWER_SECONDS)(asked)


async def _followed(
    bus: Bus, goal: Balancing, options: RebalanceOptions, printer: "BalancePrinter"
) -> Balancing:
    """Let schedulers carry a rebalancing out, or follow the standing plan that runs; return its end."""
    plan = _plan_of(goal, options)
    followed = await start_plan(bus, plan, printer)
    if followed.id != plan.id:
        [running] = (await bus.asker(FIND_PLANS)(FindPlans(plans=(followed.id,)))).plans
        if structs.replace(balancing_goal(running.plan).query, fixed=()) != goal.query:
            raise OperationRefused(_TAKEN)
    try:
        return balancing_goal((await followed.ended()).plan)
    except asyncio.CancelledError:
        await asyncio.shield(followed.stop())
        complain.print("stopped: moves in progress end by themselves", markup=False)
        raise


def _plan_of(goal: Balancing, options: RebalanceOptions) -> PlanOfMoves:
    return PlanOfMoves(
        id=Clock().uuid(), parts=PlanParts(PlanningGoal(balance=goal)), most=options.most, plan="rebalance",
        note="rebalances the hosts",
    )  # fmt: skip


async def _rehearse_stop(cli: ActCli, bus: RecordingBus) -> None:
    """Print the rebalancings that would be stopped."""
    running = await running_rebalancings(bus)
    for stands in running:
        await bus.rehearse(StopPlan(plan=stands.plan.id))
        text = f"plan {stands.plan.id} would begin no further move: {plan_sentence(stands)}"
        cli.tell(text, plan=stands.plan.id, stopping=True)
    if not running and not cli.as_json:
        cli.line("no rebalancing runs")


def _print_plans(cli: Cli, running: Sequence[PlanStands]) -> None:
    for stands in running:
        keeps_on = balancing_goal(stands.plan).keeps_on
        ends = " until `berth move rebalance stop`" if keeps_on else ""
        does = "begins no further move" if stands.stopping else f"rebalances{ends}"
        cli.value(
            {"plan": stands.plan.id, "keeps_on": keeps_on, "stopping": stands.stopping},
            f"plan {stands.plan.id} {does}: {plan_sentence(stands)}",
        )
    if not running and not cli.as_json:
        cli.line("no rebalancing runs")


class BalancePrinter(PlanPrinter):
    """Prints the plan of a rebalancing, and the result of each of its moves."""

    def planned(self, plan: BalancePlanned) -> None:
        if self.cli.as_json:
            write_json(plan)
            return
        is_usable = plan.goal == "usable"
        for cell, before in sorted(plan.before.items()):
            figures = [before, plan.after[cell]] if plan.moves else [before]
            change = " → ".join(f"{figure:,.1f}" if is_usable else f"{figure:.1%}" for figure in figures)
            figure = f"{change} instances of a usual shape fit (mean)" if is_usable else f"spread {change}"
            self.cli.line(f"cell {cell}: {figure}")
        none = printable(plan.why) or "no move gains enough"
        self.cli.line(several(len(plan.moves), "move") if plan.moves else none, "bold")
        of_host = " of a host" if is_usable else ""
        for step in plan.moves:
            self.cli.line(f"{step_line(step)}  gain {step.gain:.1%}{of_host}")
