"""`berth instance group`: manages server groups, with instances that are placed together or apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

import msgspec

from berth.kit import (
    ActCli,
    BadSetting,
    Cli,
    Commands,
    ListCli,
    checked,
    described,
    host_names,
    option,
    plain_table,
    positional,
    write_json,
)
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.vocabulary import InUse, LimitReached, Taken
from control_room.kit import several
from features.groups.constraint_options import topology_given
from features.groups.lookup import group_named
from features.groups.messages import (
    EDIT_GROUP,
    GROUPS,
    DropGroup,
    FindGroups,
    GroupEdited,
    GroupEditRequested,
    GroupPolicy,
    MakeGroup,
    ServerGroup,
)

_PAGE = 1000
_NAMED = 20  # members that the refusal of a dry run names
_POLICIES: tuple[GroupPolicy, ...] = get_args(GroupPolicy)

commands = Commands(name="group", no_args_is_help=True)

Which = Annotated[str, positional("Its name or uuid.", metavar="GROUP")]
Project = Annotated[
    str,
    described(
        "The project that owns it (default: as for `berth boot`); requests join only groups of their project."
    ),
]


@dataclass(frozen=True, kw_only=True)
class NewGroupOptions:
    """The options of a new server group, as an operator enters them."""

    policy: str = option(
        "",
        "affinity, anti-affinity, soft-affinity or soft-anti-affinity; optional with --pack, --spread.",
        metavar="POLICY",
    )
    max_per_host: int = option(1, "Members of an anti-affinity group allowed on one host.", min=1)
    pack: str = option("", "All members in one domain of this level, such as one rack.", metavar="LEVEL")
    spread: str = option("", "At most K members (1) in each domain of this level.", metavar="LEVEL[:K]")
    prefer_topology: bool = option(False, "--pack and --spread are preferences, not conditions.")


@commands.command("create")
async def create_command(
    cli: Cli,
    name: Annotated[str, positional("Unique in its project.")],
    options: NewGroupOptions,
    project: Project = "",
) -> None:
    """Create a server group, which cannot be changed later.

    affinity: all members on one host, that of the first member. anti-affinity: at most --max-per-host members
    on one host. --pack and --spread refer to labels of hosts and may be added to a policy:
    `berth instance group create db --policy anti-affinity --pack row`. Placement checks all of them when a
    host is claimed, so they always hold; soft policies and --prefer-topology are preferences.
    """
    topology = topology_given(options.pack, options.spread, options.prefer_topology)
    policy = options.policy or ("topology" if topology.levels else "")
    made = _made(name, policy, options.max_per_host, project)
    order = checked(GroupEditRequested(edit=msgspec.structs.replace(made, topology=topology)))
    async with cli.bus("group") as bus:
        group = (await _edited(bus, order)).group
    assert isinstance(group, ServerGroup)
    cli.value(group, f"server group {group.name}: {group.id}")


@commands.command("list")
async def list_groups(
    cli: Annotated[ListCli, "Whole, as JSON lines."],
    project: str = option("", "Only groups of this project."),
) -> None:
    """List server groups by name, with the number of members and of their hosts."""
    async with cli.bus("group") as bus:
        groups = await _all(bus, project)
    rows = []
    for group in groups:
        hosts = {root for roots in group.members.values() for root in roots}
        counts = len(group.members), len(hosts)
        rows.append((group.name, group.id, _policy(group), *counts, group.project))
    titles = ("name", "uuid", "policy", "members", "hosts", "project")
    cli.rows(groups, plain_table(titles, rows) if groups else "no server groups")


@commands.command("show")
async def show(cli: Cli, wanted: Which, project: Project = "") -> None:
    """Show one server group with its members and their hosts.

    A guest left behind on a host keeps other members of an anti-affinity group off that host until it is
    destroyed.
    """
    async with cli.bus("group") as bus:
        group = await group_named(bus, wanted, project)
        hosts = await _hosts(bus, group)
    if cli.as_json:
        write_json({**msgspec.structs.asdict(group), "hosts": hosts})
        return
    cli.line(f"{group.name} {group.id}")
    cli.line(f"  {_policy(group)}; project {printable(group.project)}")
    if not group.members:
        cli.say.print("  no members")
    for places, note in ((group.members, ""), (group.left, " (may still be there)")):
        for consumer, roots in places.items():
            on = ", ".join(printable(hosts.get(root, root)) for root in roots)
            cli.line(f"  {consumer} on {on}{note}")


@commands.command("delete")
async def delete(
    cli: ActCli,
    wanted: Which,
    project: Project = "",
    force: bool = option(False, "Also with members: they stay where they are, without a policy."),
) -> None:
    """Delete a server group that has no members."""
    async with cli.bus("group") as bus:
        group = await group_named(bus, wanted, project)
        order = GroupEditRequested(edit=DropGroup(group=group.id, force=force))
        if cli.dry_run:
            if group.members and not force:
                raise _in_use(group.name, sorted(group.members)[:_NAMED])
            await bus.rehearse(order)
        else:
            await _edited(bus, order, group.name)
    facts = {"id": group.id, "name": group.name, "members": len(group.members), "gone": True}
    left = f"; {several(len(group.members), 'member')} left without a policy" if group.members else ""
    cli.tell(f"server group {group.name} {cli.becomes('deleted')}{left * cli.dry_run}", **facts)


def _in_use(name: str, members: Sequence[str]) -> OperationRefused:
    listed = ", ".join(members)
    return OperationRefused(f"server group {name} has members ({listed}): delete them first, or give --force")


async def _edited(bus: Bus, order: GroupEditRequested, name: str = "") -> GroupEdited:
    """Ask placement to create or delete a server group; raise OperationRefused if placement refuses. `name`:
    the group to delete, for the error's text.
    """
    match (await bus.asker(EDIT_GROUP)(order)).result:
        case GroupEdited() as edited:
            return edited
        case InUse(members=members):
            raise _in_use(name, members)
        case LimitReached() as reached:
            raise OperationRefused(str(reached))
        case Taken(what="name", value=taken):
            raise OperationRefused(f"there is a server group {taken} in this project already")
    raise OperationRefused("other processes are changing it: try again")


def _made(name: str, policy: str, max_per_host: int, project: str) -> MakeGroup:
    known = next((literal for literal in _POLICIES if literal == policy), None)
    if known is None:
        raise BadSetting(f"--policy {policy}: it is one of {', '.join(_POLICIES)}")
    if max_per_host != 1 and known != "anti-affinity":
        raise BadSetting(f"--max-per-host is of anti-affinity groups, not of {known}")
    group = MakeGroup(group=Clock().uuid(), name=name, policy=known, max_per_host=max_per_host)
    return msgspec.structs.replace(group, project=project) if project else group


async def _all(bus: Bus, project: str) -> Sequence[ServerGroup]:
    """Return the server groups of a project, or of all projects if `project` is empty, sorted by name."""
    found: list[ServerGroup] = []
    ask, after = bus.asker(GROUPS), ""
    while True:
        page = (await ask(checked(FindGroups(project=project, after=after, limit=_PAGE)))).groups
        found += page
        if len(page) < _PAGE:
            return sorted(found, key=lambda group: (group.name, group.project))
        after = page[-1].id


async def _hosts(bus: Bus, group: ServerGroup) -> dict[str, str]:
    """Return the names of the hosts of a server group's members and of its guests left behind, by the id of
    the host's root provider.
    """
    places = (*group.members.values(), *group.left.values())
    return await host_names(bus, {root for listed in places for root in listed})


def _policy(group: ServerGroup) -> str:
    most = f", at most {group.max_per_host} on a host" if group.policy == "anti-affinity" else ""
    topology = str(group.topology)
    if group.policy == "topology":
        return topology or "no constraint"
    return f"{group.policy}{most}" + (f", {topology}" if topology else "")
