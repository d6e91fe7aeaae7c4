"""`berth audit undo`: undoes acts that the audit trail has recorded."""

from typing import Annotated

from berth.kit.command_groups import Commands
from berth.kit.dry_run import ActCli
from berth.kit.options import option, positional
from berth.kit.reversals import named_acts, reversal
from berth.kit.short_ids import short
from bus.masking import printable
from bus.parts import builtins_of

commands = Commands()


@commands.command("undo")
async def undo_command(
    cli: ActCli,
    ids: Annotated[
        list[str], positional("Ids of acts, or of commands, in `berth audit log`; 8 characters suffice.")
    ],
    anyway: bool = option(False, "Undo also if the target was changed later by others."),
) -> int:
    """Undo acts of the audit trail: changed states, labels, limits, groups and other edits.

    The id of a command undoes all of its acts, the latest first. An act is refused if a later act changed the
    same target. Builds, deletions and moves cannot be undone. What undoes an act is an act itself: it is
    judged by the role and recorded, and can be undone.
    """

    async def undo(id_: str) -> None:
        for record in await named_acts(bus, id_):
            found = await reversal(bus, record, anyway=anyway)
            if cli.dry_run:
                await bus.rehearse(*found.requests)
            else:
                await found.send(bus)
            target = printable(record.name or record.target)
            cli.value(
                {"act": record, "requests": [builtins_of(request) for request in found.requests]},
                f"{record.act} {short(record.id)} of {target}: {cli.becomes('undone')}",
            )

    async with cli.bus("audit-undo") as bus:
        return await cli.each(ids, undo)
