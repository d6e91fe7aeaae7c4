"""`berth audit at TIME capacity`: how many instances would have fitted on the hosts at a past time."""

from typing import Annotated

import typer

from berth.kit import BadSetting, Cli, Commands, option, positional
from features.capacity_plans.core.plan_form import InvalidPlan, parse_plan
from features.capacity_plans.core.planning import planned
from features.capacity_plans.plan_output import show_plan
from features.history.commands import show_heading, state_at
from features.history.reading import PastTime, hosts_of

commands = Commands()


@commands.command("capacity")
async def capacity(
    context: typer.Context,
    cli: Cli,
    mix: Annotated[
        list[str],
        positional(
            "A flavor, N of it in each mix: 3xVCPU:2,MEMORY_MB:4096,TRAIT,!TRAIT",
            metavar="[Nx]CLASS:AMOUNT,...",
        ),
    ],
    zone: str = option("", "Only hosts of this zone."),
    cell: str = option("", "Only hosts of this cell."),
) -> int:
    """Show how many instances of a flavor, or of a mix of flavors, would have fitted on the hosts at that
    time.

    The instances are counted by amounts and traits, without filters, as by `berth request what-if --mix`.
    """
    moment: PastTime = context.obj
    try:
        plan = parse_plan(mix, (), (), zone, cell)
        cloud = await state_at(cli, moment)
        answer = planned(hosts_of(cloud), plan)
    except InvalidPlan as bad:
        raise BadSetting("; ".join(str(arg) for arg in bad.args)) from None
    show_heading(cli, cloud, moment)
    if cli.as_json:
        cli.value({"number": cloud.number, "at": cloud.at, "plan": answer.now}, "")
    else:
        show_plan(answer, cli)
    return 0 if answer.now.mixes else 1
