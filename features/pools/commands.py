"""`berth resource pool`: manages resources that hosts share, such as storage or addresses."""

import re
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID, uuid5

from berth.kit import (
    ActCli,
    BadSetting,
    Cli,
    Commands,
    ListCli,
    aggregate_named,
    check_host_names,
    checked,
    every_provider,
    option,
    plain_table,
    positional,
)
from bus import topics
from bus.aggregates import (
    AggregateEdit,
    AggregateEdited,
    AggregateEditRequested,
    ChangeAggregate,
    DropAggregate,
    MakeAggregate,
)
from bus.aggregates import refusal_reason as why_no_edit
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.reports import SHARES, Inventory
from bus.requests import ResourceGroup
from bus.resources import DropProvider, Edited, EditRequested, FindProviders, Provider
from bus.vocabulary import InUse, Missing
from control_room.kit import several
from features.placement_additions.messages import LOAD, LoadProviders, ProviderLoad

_POOLS = UUID("6f1a1d5e-8a53-4f7e-9d0c-2b4f6f9d3c11")  # namespace of the uuids of pools
_RESOURCE = re.compile(r"([A-Z0-9_]+)=([0-9]+)")
TIMEOUT = 60.0

commands = Commands(name="pool", no_args_is_help=True)

NameOfPool = Annotated[str, positional("Its name.", metavar="NAME")]


@dataclass(frozen=True)
class PoolOptions:
    resource: list[str] | None = option(
        None, "What it has: DISK_GB=10000; may be repeated.", metavar="CLASS=AMOUNT"
    )
    reserved: list[str] | None = option(
        None, "How much of it is not for instances; may be repeated.", metavar="CLASS=AMOUNT"
    )
    host: list[str] | None = option(None, "A host that uses it; may be repeated.", metavar="HOST")
    aggregate: str = option("", "The hosts of this aggregate use it, instead of --host.", metavar="NAME|UUID")


@commands.command("create")
async def create_command(cli: Cli, name: NameOfPool, options: PoolOptions) -> None:
    """Create a pool of shared resources. If it exists, change its amounts and add hosts to it.

    The hosts must have no inventories of the pool's resource classes: instances would be allocated from
    the hosts' inventories first.
    Example: `berth resource pool create nfs1 --resource DISK_GB=50000 --host h1 --host h2`.
    """
    amounts, reserved = _amounts("--resource", options.resource), _amounts("--reserved", options.reserved)
    if not amounts:
        raise BadSetting("give the pool's resources with --resource, such as DISK_GB=10000")
    if strange := reserved.keys() - amounts.keys():
        raise BadSetting(f"--reserved {min(strange)}: the pool has no such resource")
    if bool(options.host) == bool(options.aggregate):
        raise BadSetting("name the hosts that use it with --host or --aggregate")
    inventories = {
        class_: Inventory(total=total, reserved=reserved.get(class_, 0)) for class_, total in amounts.items()
    }
    pool = id_of(name)
    async with cli.bus("pool") as bus:
        if options.aggregate:
            aggregate = (await aggregate_named(bus, options.aggregate)).id
        else:
            await check_host_names(bus, options.host or ())
            aggregate = await _shared_by(bus, pool, name, tuple(options.host or ()))
        wanted = ProviderLoad(
            id=pool, name=name, inventories=inventories, traits=(SHARES,), aggregates=(aggregate,)
        )
        order = checked(LoadProviders(providers=(wanted,)))
        [result] = (await bus.asker(LOAD, TIMEOUT)(order)).results
    if result.did == "refused":
        raise OperationRefused(result.why)
    cli.tell(f"pool {name}: {result.did}", name=name, uuid=pool, aggregate=aggregate, did=result.did)


@commands.command("list")
async def list_command(cli: ListCli) -> None:
    """List the pools: providers that share their resources with the hosts of their aggregates."""
    like = ResourceGroup(required=(SHARES,))
    async with cli.bus("pool") as bus:
        question = FindProviders(like=like, parts=("inventories", "aggregates"))
        found = [each async for each in every_provider(bus, question, timeout=TIMEOUT)]
        hosts = {pool.id: await _users(bus, pool) for pool in found}
    facts = (
        {"name": pool.name, "uuid": pool.id, "hosts": hosts[pool.id], "inventories": _figures(pool)}
        for pool in found
    )
    lines = (
        (
            *(printable(pool.name), pool.id, f"{hosts[pool.id]:,}"),
            ", ".join(f"{name} {of['used']}/{of['capacity']}" for name, of in _figures(pool).items()),
        )
        for pool in sorted(found, key=lambda pool: pool.name)
    )
    cli.rows(facts, plain_table(("pool", "uuid", "hosts", "used/capacity"), lines) if found else "no pool")


@commands.command("delete")
async def delete_command(cli: ActCli, name: NameOfPool) -> None:
    """Delete a pool from which no instance has allocations; its hosts stay."""
    pool, stay = id_of(name), ""
    order, aggregate = (
        EditRequested(edit=DropProvider(provider=pool)),
        DropAggregate(aggregate=pool, force=True),
    )
    async with cli.bus("pool") as bus:
        if cli.dry_run:
            question = FindProviders(ids=(pool,), parts=("inventories", "aggregates"))
            found = (await bus.asker(topics.PROVIDERS, TIMEOUT)(question)).providers
            _check_deletion(
                name, is_known=bool(found), is_used=any(any(each.used.values()) for each in found)
            )
            await bus.rehearse(order, AggregateEditRequested(edit=aggregate))
            stay = f"; {several(await _users(bus, found[0]), 'host')} use it"
        else:
            result = (await bus.asker(topics.EDIT, TIMEOUT)(order)).result
            _check_deletion(name, not isinstance(result, Missing), isinstance(result, InUse))
            if not isinstance(result, Edited):
                raise OperationRefused("other processes are changing it: try again")
            await _edit(bus, aggregate)
    cli.tell(f"pool {name}: {cli.becomes('deleted')}{stay}", name=name, uuid=pool)


def _check_deletion(name: str, is_known: bool, is_used: bool) -> None:
    """Raise OperationRefused if a pool does not exist, or if instances have allocations from it."""
    if not is_known:
        raise OperationRefused(f"there is no pool {name} that `berth resource pool create` made")
    if is_used:
        raise OperationRefused(f"instances use pool {name}: `berth resource provider show {name}` lists them")


def id_of(name: str) -> str:
    """Return the uuid of a pool, computed from its name; the aggregate of its hosts has the same uuid."""
    return str(uuid5(_POOLS, name))


async def _shared_by(bus: Bus, pool: str, name: str, hosts: tuple[str, ...]) -> str:
    """Create the aggregate of a pool's `hosts`, or add them if it exists; return its uuid, `pool`."""
    made = await _edit(bus, MakeAggregate(aggregate=pool, name=f"pool {name}", hosts=hosts))
    if made is not None and not made.made:
        await _edit(bus, ChangeAggregate(aggregate=pool, add=hosts))
    return pool


async def _edit(bus: Bus, edit: AggregateEdit) -> AggregateEdited | None:
    """Ask placement to edit a pool's aggregate; return its answer, or None if the aggregate is missing."""
    order = checked(AggregateEditRequested(edit=edit))
    result = (await bus.asker(topics.EDIT_AGGREGATE, TIMEOUT)(order)).result
    if isinstance(result, AggregateEdited):
        return result
    if isinstance(result, Missing) and result.what == "aggregate":
        return None
    raise OperationRefused(why_no_edit(result))


async def _users(bus: Bus, pool: Provider) -> int:
    """Return how many hosts can use a pool: the members of its aggregates."""
    like = ResourceGroup(member_of=(pool.aggregates,), forbidden=(SHARES,))
    question = FindProviders(like=like, parts=())
    return len([each async for each in every_provider(bus, question, timeout=TIMEOUT)])


def _figures(pool: Provider) -> dict[str, dict[str, int]]:
    return {
        name: {"used": pool.used.get(name, 0), "capacity": stock.capacity}
        for name, stock in sorted(pool.inventories.items())
    }


def _amounts(option: str, given: list[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in given or ():
        form = _RESOURCE.fullmatch(text)
        if form is None:
            raise BadSetting(f"{option} takes CLASS=AMOUNT, such as DISK_GB=10000, not {text!r}")
        found[form[1]] = int(form[2])
    return found
