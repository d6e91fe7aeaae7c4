"""`berth provider`: assign hosts to cells."""

import re
from fnmatch import fnmatchcase
from typing import Annotated

import typer

from berth.commands.options import Commands, argument, option
from berth.commands.terminal import Cli
from berth.operations.adoptable import SHARES
from berth.operations.cells import chosen_cells
from berth.operations.host_states import every_provider
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.chunks import portions
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.resources import FindProviders, OwnerEditRequested, OwnerGiven, Provider
from bus.vocabulary import Missing

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_AT_ONCE = 100  # roots
_SHOWN = 10

commands = Commands(name="provider", no_args_is_help=True)


@commands.callback()
def provider() -> None:
    """Assign hosts to cells."""


@commands.command("reset")
async def reset_command(
    cli: Cli,
    cell: Annotated[str, typer.Option(metavar="NAME", help="The cell that has it from now on.")],
    root: str = argument("", "The uuid of its root provider, or its name.", metavar="ROOT"),
    ownerless: bool = option(
        False,
        "Every root that no cell has, as after `berth import`; but no pool that shares with others.",
        "--all-without-owner",
    ),
    match: str = option("*", "Of those, only the ones called so: 'rack7-*'.", metavar="PATTERN"),
    dry_run: bool = option(False, "Of those, say which it would be, and do nothing."),
) -> int:
    """Assign a host to a cell, whatever its present cell, and restart the sequence of its reports.

    It corrects a report of the wrong cell, or one with a sequence far ahead, and assigns hosts that an
    operator created or imported. Nothing is placed there until the cell has reported the host.
    """
    if bool(root) == ownerless:
        raise BadSetting("say which: a root, or --all-without-owner")
    if ownerless:
        return await reset_the_ownerless(cli, cell, match, dry_run)
    return await reset(cli, root, cell)


async def reset(cli: Cli, root: str, cell: str) -> int:
    async with cli.bus("provider") as bus:
        await chosen_cells(bus, cli.settings, [cell])
        if not _UUID.fullmatch(root):
            found = (await bus.asker(topics.PROVIDERS)(FindProviders(name=root))).providers
            if not found:
                raise OperationRefused(f"there is no provider {root}")
            root = found[0].root
        order = checked(OwnerEditRequested(root=root, cell=cell))
        result = (await bus.asker(topics.EDIT_OWNER)(order)).result
        if isinstance(result, Missing):
            raise OperationRefused(f"there is no root provider {root}")
    if not isinstance(result, OwnerGiven):
        raise OperationRefused("others are at work on it just now: try again")
    before = f"cell {result.cell}" if result.cell else "no cell"
    told = f", agent {result.agent}" if result.agent else ""
    cli.value(result, f"{root} is of cell {cell}; it was of {before}{told}, last report {result.sequence}")
    return 0


async def reset_the_ownerless(cli: Cli, cell: str, match: str, dry_run: bool) -> int:
    """Give providers without an owner to a cell, except shared pools."""
    async with cli.bus("provider") as bus:
        await chosen_cells(bus, cli.settings, [cell])
        found = [provider for provider in await _ownerless(bus) if fnmatchcase(provider.name, match)]
        failed: list[str] = []
        for part in portions([] if dry_run else found, _AT_ONCE):
            orders = [OwnerEditRequested(root=provider.id, cell=cell) for provider in part]
            answers = await bus.asker_of_many(topics.EDIT_OWNER, timeout=60.0)(orders)
            given = [isinstance(answer.result, OwnerGiven) for answer in answers]
            failed += [provider.name for provider, done in zip(part, given, strict=True) if not done]
    names = [provider.name for provider in found if provider.name not in failed]
    some = f": {', '.join(printable(one.name) for one in found[:_SHOWN])}" if found else ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    goes = f"would go to cell {cell}" if dry_run else f"are of cell {cell} now"
    sentence = f"{len(found) - len(failed)} hosts {goes}{some}{more}"
    cli.tell(sentence, cell=cell, hosts=names, failed=failed, done=not dry_run)
    if failed:
        raise OperationRefused(f"others are at work on {', '.join(failed[:_SHOWN])}: say the same again")
    return 0


async def _ownerless(bus: Bus) -> list[Provider]:
    """Return the roots without a cell, by name, except shared pools."""
    found = [
        provider
        async for provider in every_provider(bus, FindProviders(parts=("owner", "traits")), timeout=60.0)
        if provider.parent is None and not provider.cell and SHARES not in provider.traits
    ]
    return sorted(found, key=lambda one: one.name)
