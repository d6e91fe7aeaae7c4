"""`berth host`: lists hosts, and enables, disables or forces them down by traits of their root providers."""

from collections.abc import Sequence
from typing import Annotated, Any

from berth.commands.host_tables import host_facts, hosts_table
from berth.kit.command_groups import Commands
from berth.kit.decision_output import held_sentence
from berth.kit.dry_run import ActCli
from berth.kit.host_marks import Marking, checked_cause, disabling, enabling, forcing_down
from berth.kit.host_output import HostNames, provider_tree
from berth.kit.hosts import host_named, reported_hosts
from berth.kit.key_values import domains_given, labels_given
from berth.kit.listing import ListCli
from berth.kit.options import described, option, positional
from berth.kit.publishing import checked
from berth.kit.terminal import Cli
from berth.kit.timeline import Happening, acts_found, of_acts, show_timeline
from berth.operations.cells import CONDUCTOR_SECONDS
from berth.operations.host_states import HostStandings, holds_on
from berth.operations.host_summaries import host_summaries
from berth.settings import BadSetting
from bus import topics
from bus.audit_trail import FindActs
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.domains import LabelEditRequested, LabelsEdited
from bus.errors import UNANSWERED, OperationRefused
from bus.masking import printable
from bus.queries import FindInstances
from bus.resources import FindProviders, Provider
from bus.vocabulary import portions
from control_room.kit.words import several

commands = Commands(name="host", no_args_is_help=True)


Because = Annotated[
    str, described("The cause; several can be added, and removed one by one.", metavar="WORD")
]


OfAgent = Annotated[str, described("All hosts of this agent.", "--agent")]


@commands.command("list")
async def show_all(
    cli: ListCli,
    cell: str = option("", "Only hosts of this cell."),
    agent: str = option("", "Only hosts of this agent."),
    label: Annotated[
        list[str] | None,
        described("Only hosts with this label; may be repeated.", "--label", "-l", metavar="LEVEL=NAME"),
    ] = None,
    closed: bool = option(False, "Only hosts that are not up."),
) -> None:
    """List hosts and bare-metal nodes: state, problem, used share of each resource class, instances.

    A scheduler judges the state, and names the last heartbeat. `-o wide` adds other classes, agent, zone,
    labels, hypervisor, driver, version of the agent, supported moves and uuid. `--sort -memory` begins with
    the fullest host.
    """
    labels = domains_given(label or ())
    async with cli.bus("host") as bus:
        found = await host_summaries(bus, cell, agent)
    shown = [
        host
        for host in found
        if labels.items() <= host.root.labels.items() and not (closed and host.standing.state == "up")
    ]
    table = hosts_table(shown, Clock().now())
    cli.rows(map(host_facts, shown), table if shown else "no host is listed")


@commands.command("show")
async def show(
    cli: Cli,
    host: Annotated[str, positional("Its name, or its root's uuid.")],
    story: bool = option(False, "Only what was done to it, by time, and who requested it.", "--timeline"),
) -> None:
    """Show the provider tree of a host (inventories, usage and traits), and its hypervisor and agent."""
    async with cli.bus("host") as bus:
        root = await host_named(bus, host)
        if story:
            await tell_story(cli, bus, root)
            return
        query = FindProviders(
            in_tree=root.id, parts=("inventories", "traits", "aggregates", "owner", "labels")
        )
        tree = (await bus.asker(topics.PROVIDERS)(query)).providers
        standings = await HostStandings.ask(bus, (root.id,), (root.id,))
        held = await holds_on(bus, root.id)
    owner = (
        f"  {root.agent} in cell {root.cell}  {standings.of(root)}" if root.agent else "  no agent reports it"
    )
    cli.rows(tree, provider_tree(tree, owner))
    if (summary := standings.capabilities(root).summary) and not cli.as_json:
        cli.tell(printable(summary))
    for each in held:
        cli.value(each, held_sentence(each), "yellow")


async def tell_story(cli: Cli, bus: Bus, root: Provider) -> None:
    """Print what operators did to a host, and since when it is down, by time."""
    acts = [act async for act in acts_found(bus, FindActs(target=root.id))]
    now = (await HostStandings.ask(bus, (root.id,))).of(root)
    down = [Happening(now.since, f"last heartbeat; now {now.state}: {now.why}")] if now.since else []
    show_timeline([*of_acts(acts), *down], cli, f"nothing is recorded of {root.host or root.name}")


@commands.command("disable")
async def disable_command(
    cli: ActCli, hosts: HostNames = None, agent: OfAgent = "", because: Because = ""
) -> int:
    """Disable hosts: schedulers place no new builds there; instances stay.

    A host can be disabled for several causes, for example `--because disk` and later `--because upgrade`; it
    is enabled when the last cause is removed. `berth host drain` moves the instances away.
    """
    return await mark(cli, hosts or (), agent, disabling(checked_cause(because)))


@commands.command("enable")
async def enable_command(
    cli: ActCli, hosts: HostNames = None, agent: OfAgent = "", because: Because = ""
) -> int:
    """Remove a cause for which hosts are disabled; a host without any cause is enabled.

    `--because disk` removes that cause; without the option the unnamed cause is removed. A host that
    its agent has disabled stays disabled: only the agent can enable the host.
    Exit 1 if a host stays disabled.
    """
    return await mark(cli, hosts or (), agent, enabling(checked_cause(because)), stays=True)


@commands.command("force-down")
async def force_down_command(
    cli: ActCli,
    hosts: HostNames = None,
    agent: OfAgent = "",
    undo: bool = option(False, "It counts as up again while its agent sends heartbeats."),
) -> int:
    """Mark hosts as down, whatever their agents report."""
    return await mark(cli, hosts or (), agent, forcing_down(not undo))


@commands.command("label")
async def label_command(
    cli: Cli,
    given: Annotated[list[str], positional("Names of hosts, and labels.", metavar="HOST... LEVEL=NAME...")],
    unset: Annotated[list[str] | None, described("Remove the label of this level.", metavar="LEVEL")] = None,
    agent: OfAgent = "",
) -> None:
    """Label hosts by level: `berth host label host-1 host-2 rack=r1 row=a`.

    Requests and rules pack instances into one rack or spread them over racks. A label
    that an operator sets comes before the labels that agents, aggregates (topology:rack) and Ironic's fields
    give. Any level may be named; `host`, `cell` and `zone` exist for every host without labels.
    """
    names = [text for text in given if "=" not in text]
    labels = labels_given([text for text in given if "=" in text])
    if bool(names) == bool(agent):
        raise BadSetting("name the hosts, or give --agent")
    if not labels and not unset:
        raise BadSetting(
            "give a label, such as rack=r1, or --unset LEVEL; `berth host show` shows the labels"
        )
    async with cli.bus("host") as bus:
        roots = [await host_named(bus, name) for name in names] or [
            root async for root in reported_hosts(bus, agent)
        ]
        changed = 0
        for some in portions(roots, 500):
            ids = tuple(root.id for root in some)
            order = checked(LabelEditRequested(roots=ids, set=labels, unset=tuple(unset or ())))
            match (await bus.asker(topics.EDIT_LABELS, timeout=60.0)(order)).result:
                case LabelsEdited(changed=number):
                    changed += number
                case refused:
                    raise OperationRefused(f"the hosts were not labelled: {refused}")
    cli.tell(f"labels of {changed} of {len(roots)} hosts changed", changed=changed, hosts=len(roots))


async def mark(cli: ActCli, names: Sequence[str], agent: str, marking: Marking, stays: bool = False) -> int:
    """Mark the named hosts, each alone, or all hosts of an agent; print their new states, and return the exit
    code: 1 if a host is refused or, with `stays`, if it stays disabled.
    """
    if bool(names) == bool(agent):
        raise BadSetting("name the hosts, or give --agent")
    async with cli.bus("host") as bus:
        roots = {root.id: root async for root in reported_hosts(bus, agent)} if agent else {}
        if not roots and not names:
            raise OperationRefused(f"no host is reported by an agent {agent!r}")

        async def mark_one(host: str) -> bool:
            root = roots.get(host) or await host_named(bus, host)
            marked = await (marking.rehearsed if cli.dry_run else marking)(bus, root)
            name = root.host or root.name
            facts: dict[str, Any] = {"host": name, "uuid": root.id, "cell": root.cell, "becomes": marked.says}
            counted = ""
            if cli.dry_run and (holds := await instances_on(bus, root)) is not None:
                facts["instances"] = holds
                counted = f"; it keeps {several(holds, 'instance')}"
            cli.tell(f"{name}: {marked.says}{counted}", **facts)
            return not (stays and marked.is_disabled)

        return await cli.each([*names, *roots], mark_one)


async def instances_on(bus: Bus, root: Provider) -> int | None:
    """Return how many instances a host has; None if its cell does not answer."""
    if not root.cell:
        return None
    ask = bus.asker(topics.FIND_INSTANCES, timeout=CONDUCTOR_SECONDS)
    try:
        return (await ask(FindInstances(cell=root.cell, host=root.id, limit=1, count=True))).count
    except UNANSWERED:
        return None
