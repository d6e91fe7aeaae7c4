"""`berth rebalance` moves instances from the fullest hosts to emptier hosts."""

from dataclasses import dataclass
from typing import Annotated

from berth.commands.options import Commands, option, positional
from berth.commands.terminal import Cli, write_json
from berth.operations.boot_options import waiting_time
from berth.operations.cells import chosen_cells
from berth.settings import BadSetting
from bus.errors import OperationRefused
from bus.masking import printable
from bus.vocabulary import seconds_of
from control_room.core.words import several
from features.moves.commands.moves import MovePrinter
from features.planning.make_room_command import step_line
from features.planning.messages import (
    MOST_MOVES,
    SWITCH_BALANCING,
    BalancePlanned,
    BalancingSwitched,
    PlanBalance,
    SwitchBalancing,
)
from features.planning.rebalancing import BalanceController, carry_out, plan_balance

commands = Commands()

_STOPPED = "rebalancing is stopped: `berth rebalance start` permits it again"
_ACTIONS = {"stop": True, "start": False, "status": None}
_TAKEN = "another controller of rebalancing runs: `berth rebalance stop` ends it"


@dataclass(frozen=True)
class RebalanceOptions:
    action: Annotated[
        str,
        positional(
            "`stop` ends all rebalancing; `start` permits it; `status` shows which holds.", metavar="ACTION"
        ),
    ] = ""
    cell: str = option("", "Only hosts of this cell.")
    resource_class: str = option("VCPU", "The resource whose used share is compared.", "--class")
    gain: float = option(
        0.1, "Of each move at least: the fuller host becomes emptier by so much.", min=0.001, max=1
    )
    above: float = option(0.0, "Only hosts that are fuller become emptier: 0.8.", min=0, max=1)
    budget: int = option(10, "So many moves at most.", min=1, max=MOST_MOVES, metavar="MOVES")
    most: int = option(2, "So many moves at a time.", "--max", min=1, metavar="N")
    live: bool = option(True, "Instances run on while they move; or are stopped first.", "--live/--cold")
    keep: bool = option(False, "Run until `berth rebalance stop`: move instances again when it is necessary.")
    hold: str = option("5m", "With --keep: only what was necessary for so long.", metavar="TIME")
    dry_run: bool = option(False, "Show the moves; do nothing.")


@commands.command("rebalance")
async def rebalance_command(cli: Cli, options: RebalanceOptions) -> int:
    """Move instances from the fullest hosts to emptier hosts, each move for a stated gain.

    The gain of a move is by how much the fuller of its two hosts becomes emptier: with --gain 0.1 no instance
    moves from a host at 80 % to one that is at more than 70 % afterwards. If no single move gains enough, two
    instances change places; if the second move fails, the first is undone. If at least half of the moves
    fail, the others are undone. With --keep it is a controller that plans after changes of placement; a
    second one is refused. `berth rebalance stop` ends all of them. If this command is killed between the two
    moves of an exchange, a scheduler undoes the first.
    """
    async with cli.bus("rebalance") as bus:
        if options.action:
            if options.action not in _ACTIONS:
                raise BadSetting(f"{options.action!r}: {', '.join(_ACTIONS)}, or nothing")
            switch = SwitchBalancing(stop=_ACTIONS[options.action])
            _print_state(cli, await bus.asker(SWITCH_BALANCING)(switch))
            return 0
        if options.cell:
            await chosen_cells(bus, cli.settings, [options.cell])
        asked = PlanBalance(
            cell=options.cell, resource_class=options.resource_class, budget=options.budget,
            gain=options.gain, above=options.above, cold=not options.live,
        )  # fmt: skip
        printer = BalancePrinter(cli)
        if options.dry_run:
            printer.planned(await plan_balance(bus, asked))
            return 0
        if (await bus.asker(SWITCH_BALANCING)(SwitchBalancing())).stopped:
            raise OperationRefused(_STOPPED)
        if options.keep:
            hold = seconds_of(waiting_time(options.hold))
            controller = BalanceController(bus, asked, options.most, hold, printer, printer.planned)
            if not await controller.run():
                raise OperationRefused(_TAKEN)
            cli.line(_STOPPED)
            return 0
        plan = await plan_balance(bus, asked)
        printer.planned(plan)
        done = await carry_out(bus, asked, plan, options.most, printer)
        ends = {
            "moved": len(done.moved), "undone": len(done.undone), "failed": done.failed,
            "why_undone": done.why_undone,
        }  # fmt: skip
        sentence = f"{len(done.moved)} moved, {len(done.undone)} moved back, {len(done.failed)} not moved"
        if done.why_undone:
            sentence += f": {done.why_undone}"
        if plan.moves:
            cli.tell(sentence, **ends)
    return 1 if done.failed else 0


def _print_state(cli: Cli, state: BalancingSwitched) -> None:
    """Print whether rebalancing is permitted, and the interrupted exchanges that are not undone yet."""
    if cli.as_json:
        write_json({"stopped": state.stopped, "half_done": [step.build for step in state.half_done]})
        return
    cli.line(_STOPPED if state.stopped else "rebalancing is permitted")
    for step in state.half_done:
        where = f"from {printable(step.destination_host)} back to {printable(step.source_host)}"
        cli.line(f"{step.build} is to be moved {where}: its exchange was interrupted", "red")


class BalancePrinter(MovePrinter):
    """Prints the plan of a rebalancing, and the result of each of its moves."""

    def planned(self, plan: BalancePlanned) -> None:
        if self.cli.as_json:
            write_json(plan)
            return
        for cell, before in sorted(plan.before.items()):
            after = f" → {plan.after[cell]:.1%}" if plan.moves else ""
            self.cli.line(f"cell {cell}: spread {before:.1%}{after}")
        count = sum(len(move.steps) for move in plan.moves)
        self.cli.line(several(count, "move") if count else "no move gains enough", "bold")
        for move in plan.moves:
            for step in move.steps:
                self.cli.line(f"{step_line(step)}  gain {move.gain:.1%}")
