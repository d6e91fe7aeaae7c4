"""`berth move make-room` moves instances so that builds of a flavor fit."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Annotated

from berth.kit import (
    ActCli,
    BadSetting,
    BootOptions,
    Cli,
    Commands,
    added,
    boot_descriptions,
    boot_request,
    changed_flavor,
    checked,
    complain,
    described_flavor,
    domains_given,
    flavor_in_file,
    names_of,
    option,
    positional,
    print_funnel,
    print_notes,
    resolved_request,
    seconds_given,
    write_json,
)
from bus.clock import time_text
from bus.domains import HOST
from bus.masking import printable
from control_room.kit import several
from features.moves.commands.moves import PlanPrinter
from features.planning.messages import MOST_MOVES, PlannedStep, PlanRoom, RoomGoal, RoomPlanned
from features.planning.reserving import MODULE, MadeRoom
from features.planning.room_requests import RoomListener, RoomMade, make_room, suppose_room

commands = Commands()

_ASKED = boot_descriptions("name", "at_least", "or_else", "priority")


@dataclasses.dataclass(frozen=True)
class MakeRoomOptions:
    within: Sequence[str] = option(
        (), "Only on hosts with this label; may be repeated.", "--in", metavar="LEVEL=LABEL"
    )
    budget: int = option(10, "So many moves at most.", min=0, max=MOST_MOVES, metavar="MOVES")
    most: int = option(4, "So many moves at a time.", "--max", min=1, metavar="N")
    live: bool = option(True, "Instances run on while they move; or are stopped first.", "--live/--cold")
    undo: bool = option(True, "If not all builds fit: move the instances back, or not.", "--undo/--no-undo")
    reserve: str = option(
        "", "Then reserve the capacity for the project for this time, such as 10m.", metavar="TIME"
    )


@commands.command("make-room")
async def make_room_command(
    cli: ActCli,
    options: Annotated[BootOptions, _ASKED],
    how: MakeRoomOptions,
    built: Annotated[
        str,
        positional(
            "Flavor of the builds: vcpus=16,memory_mb=65536,KEY=VALUE; a *.json file; or a name.",
            metavar="[FLAVOR]",
        ),
    ] = "",
) -> int:
    """Move as few instances as possible so that builds of a flavor fit.

    Example: `berth move make-room vcpus=16,memory_mb=65536 --count 2 --in rack=r7 --dry-run`. The options
    describe the request as for `berth boot`, and the flavor too: `--vcpus 16`. The hosts for the builds are
    closed to other requests until the last move has ended. Then waiting requests are tried first: publish the
    builds with `berth boot --wait 1h` before this command. If a move fails, another plan is tried with the
    moves that are left of --budget. If there is none, the instances are moved back as far as possible.
    Schedulers carry the plan out, also if this command is killed; the same command follows it. After Ctrl-C
    moves in progress end, and the instances stay. Exit 0 if all builds fit now, else 1.
    """
    request, within = boot_request(with_flavor(options, built)), domains_given(how.within)
    reserve = seconds_given("--reserve", how.reserve) if how.reserve else 0.0
    if reserve and request.parts.sections:
        raise BadSetting("--reserve: a reservation has one flavor, so it is not possible with --role")
    if reserve and not added(MadeRoom, MODULE):
        raise BadSetting("--reserve: no feature of this berth reserves capacity")
    if HOST in within:
        raise BadSetting("--in host=: name a host with --host")
    print_notes(request)
    async with cli.bus("make-room") as bus:
        request = checked(await resolved_request(bus, request, names_of(options)))
        asked = PlanRoom(request=request, budget=how.budget, cold=not how.live, within=within)
        printer = RoomPrinter(cli, "live" if how.live else "migrate")
        if cli.dry_run:
            plan = await suppose_room(bus, asked, how.most)
            if cli.as_json:
                cli.value(plan, "")
            else:
                printer.planned(plan)
            return 1 if plan.code else 0
        try:
            made = await make_room(bus, asked, how.most, printer, undo=how.undo, reserve=reserve)
        except asyncio.CancelledError:
            complain.print("stopped: moves in progress end by themselves, instances stay", markup=False)
            raise
    _print_result(cli, printer, made)
    return 1 if made.code or made.unreserved else 0


def _print_result(cli: Cli, printer: "RoomPrinter", made: RoomMade) -> None:
    done = made.goal
    if cli.as_json:
        ends = {"moved": [step.build for step in done.moved], "undone": [step.build for step in done.undone]}
        reserved = {"reservation": made.reservation, "unreserved": made.unreserved}
        write_json({"code": made.code, "why": made.why, **ends, "failed": done.failed, **reserved})
    elif made.code and not done.found.code:
        printer.given_up(made)
    elif not made.code and done.moved:
        cli.line(f"done: {several(len(done.moved), 'move')}; {fitting_sentence(done.found)}", "green")
    if made.reservation is not None and not cli.as_json:
        until = time_text(made.reservation.ends)
        cli.line(f"reserved for project {printable(made.reservation.project)} until {until}", "green")
    if made.unreserved and not cli.as_json:
        cli.line(f"not all is reserved: {printable(made.unreserved)}", "red")


def with_flavor(options: BootOptions, given: str) -> BootOptions:
    """Return boot options whose flavor has the changes in `given`, is in the JSON file `given`, or has the
    name `given`.
    """
    if not given:
        return options
    if "=" not in given and not given.endswith(".json"):
        if options.flavor:
            raise BadSetting(f"--flavor {options.flavor}: the flavor {given} is named already")
        return dataclasses.replace(options, flavor=given)
    described = described_flavor(options)
    found = changed_flavor("FLAVOR", described, given) if "=" in given else flavor_in_file("FLAVOR", given)
    return dataclasses.replace(
        options,
        flavor=found.name or described.name,
        vcpus=found.vcpus,
        memory_mb=found.memory_mb,
        disk_gb=found.disk_gb,
        extra_spec=tuple(f"{key}={value}" for key, value in found.extra_specs.items()),
    )


def fitting_sentence(plan: RoomPlanned) -> str:
    """Return a sentence such as `2 builds fit: 1 on c1-host00001, 1 on c1-host00004`."""
    count = sum(target.instances for target in plan.targets)
    hosts = ", ".join(f"{target.instances} on {printable(target.host)}" for target in plan.targets)
    return f"{several(count, 'build')} {'fits' if count == 1 else 'fit'}: {hosts}"


def step_line(step: PlannedStep) -> str:
    """Return a planned move as a line of text."""
    called = f"{step.build} ({printable(step.name)})" if step.name else step.build
    held = ", ".join(f"{amount} {name}" for name, amount in sorted(step.amounts.items()))
    way = f"{printable(step.source_host)} → {printable(step.destination_host)}"
    return f"  {step.wave + 1}. {step.kind:<7} {called}  {way}  ({held})"


class RoomPrinter(PlanPrinter, RoomListener):
    """Prints a plan, and the result of each of its moves."""

    def undoing(self, goal: RoomGoal) -> None:
        """Print that the moves are reverted, and why."""
        if not self.cli.as_json:
            self.cli.line(f"moving {several(len(goal.back), 'instance')} back: {printable(goal.why)}")

    def given_up(self, made: RoomMade) -> None:
        """Print why the builds do not fit, and the hosts of moved instances that were not moved back."""
        done = made.goal
        back = f"; {several(len(done.undone), 'instance')} moved back" if done.moved or done.undone else ""
        self.cli.line(f"given up [{made.code}]: {printable(made.why)}{back}", "red")
        moved = {step.build for step in done.moved}
        for build, why in done.failed.items():
            if build not in moved:
                self.cli.line(f"  {build} was not moved: {printable(why)}")
        for step in done.moved:
            why = f": {printable(done.failed[step.build])}" if step.build in done.failed else ""
            self.cli.line(f"  {step.build} stays on {printable(step.destination_host)}{why}")

    def planned(self, plan: RoomPlanned) -> None:
        """Print the plan, or why there is none."""
        if self.cli.as_json:
            return
        if plan.code:
            says = "no plan was found" if plan.unproven else "there is no plan"
            self.cli.line(f"{says} [{plan.code}]: {printable(plan.why)}", "red")
            if plan.moves or plan.targets:
                self.cli.line(f"  {fitting_sentence(plan)}, after {several(len(plan.moves), 'move')}")
            print_funnel(plan.decision, self.cli.say)
        elif not plan.moves:
            self.cli.line(f"no move is needed: {fitting_sentence(plan)}", "green")
        else:
            self.cli.line(f"{several(len(plan.moves), 'move')}; then {fitting_sentence(plan)}", "bold")
        for step in plan.moves:
            self.cli.line(step_line(step))
        if plan.unproven:
            better = "a plan may exist" if plan.code else "a plan with fewer moves may exist"
            self.cli.line(f"{better}: {printable(plan.unproven)}", "dim")
