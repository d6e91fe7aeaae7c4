"""`berth host`: lists hosts, and enables, disables or forces them down by traits of their root providers."""

from collections.abc import Sequence
from typing import Annotated

from berth.commands.host_tables import host_facts, hosts_table
from berth.kit.command_groups import Commands
from berth.kit.decision_output import held_sentence
from berth.kit.host_marks import Marked, Marking, checked_cause, disabling, enabling, forcing_down
from berth.kit.host_output import HostNames, provider_tree
from berth.kit.hosts import host_named, reported_hosts
from berth.kit.key_values import domains_given, labels_given
from berth.kit.listing import ListCli
from berth.kit.options import described, option, positional
from berth.kit.publishing import checked
from berth.kit.terminal import Cli
from berth.kit.timeline import Happening, acts_found, of_acts, show_timeline
from berth.operations.host_states import HostStandings, holds_on
from berth.operations.host_summaries import host_summaries
from berth.settings import BadSetting
from bus import topics
from bus.audit_trail import FindActs
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.domains import LabelEditRequested, LabelsEdited
from bus.errors import OperationRefused
from bus.masking import printable
from bus.resources import FindProviders, Provider
from bus.vocabulary import portions

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
    cli: Cli, hosts: HostNames = None, agent: OfAgent = "", because: Because = ""
) -> None:
    """Disable hosts: schedulers place no new builds there; instances stay.

    A host can be disabled for several causes, for example `--because disk` and later `--because upgrade`; it
    is enabled when the last cause is removed. `berth host drain` moves the instances away.
    """
    await mark(cli, hosts or (), agent, disabling(checked_cause(because)))


@commands.command("enable")
async def enable_command(
    cli: Cli, hosts: HostNames = None, agent: OfAgent = "", because: Because = ""
) -> int:
    """Remove a cause for which hosts are disabled; a host without any cause is enabled.

    `--because disk` removes that cause; without the option the unnamed cause is removed. A host that
    its agent has disabled stays disabled: only the agent can enable the host.
    Exit 1 if a host stays disabled.
    """
    marked = await mark(cli, hosts or (), agent, enabling(checked_cause(because)))
    return 1 if any(host.is_disabled for host in marked) else 0


@commands.command("force-down")
async def force_down_command(
    cli: Cli,
    hosts: HostNames = None,
    agent: OfAgent = "",
    undo: bool = option(False, "It counts as up again while its agent sends heartbeats."),
) -> None:
    """Mark hosts as down, whatever their agents report."""
    await mark(cli, hosts or (), agent, forcing_down(not undo))


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


async def mark(cli: Cli, names: Sequence[str], agent: str, marking: Marking) -> list[Marked]:
    """Apply `marking` (enable, disable or force down) to the named hosts, or to all hosts of an agent; print
    and return their new states.
    """
    if bool(names) == bool(agent):
        raise BadSetting("name the hosts, or give --agent")
    async with cli.bus("host") as bus:
        roots = [await host_named(bus, name) for name in names] or [
            one async for one in reported_hosts(bus, agent)
        ]
        if not roots:
            raise OperationRefused(f"no host is reported by an agent {agent!r}")
        marked = []
        for root in roots:
            name, now = root.host or root.name, await marking(bus, root)
            cli.tell(f"{name}: {now.says}", host=name, uuid=root.id, cell=root.cell, becomes=now.says)
            marked.append(now)
    return marked
