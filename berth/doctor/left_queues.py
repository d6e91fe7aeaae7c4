"""Finds durable queues without a consumer, left by an agent that does not run any more or by a former value
of `agent_queues`, without I/O.

A queue without a consumer stays bound, so it keeps a copy of every further order. The queues of agents come
from RabbitMQ's management API, because the settings do not list the agents.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from berth.doctor.seen import BerthSeen, DurableQueue, ManagementSeen
from berth.kit.findings import Finding

AGENTS = 5  # agents of a cell that get a finding each; further agents share one finding
QUEUES = 5  # queues listed by name in a finding

_LOST = "Messages in a deleted queue are lost, but conductors repeat the orders of unfinished builds"


def left_queues(seen: BerthSeen) -> Iterator[Finding]:
    """Yield findings about durable queues of agents and gateways that have no consumer, except queues of
    workers in the settings.
    """
    expected = seen.queues
    for broker in seen.brokers:
        queues = sorted(broker.management.of_agents, key=lambda queue: (queue.cell, queue.worker))
        for cell, of_cell in groupby(queues, key=lambda queue: queue.cell):
            yield from _of_cell(cell, list(of_cell), expected, broker.management)


def _of_cell(
    cell: str, queues: Sequence[DurableQueue], expected: Collection[str], at: ManagementSeen
) -> Iterator[Finding]:
    gateway = [queue for queue in queues if queue.worker == f"gateway.{cell}"]
    gateway_expected = any(queue.name in expected for queue in gateway)
    agents = [list(some) for _, some in groupby(queues, key=lambda queue: queue.worker)]
    idle = [
        some
        for some in agents
        if not any(queue.readers or queue.name in expected for queue in some)
        and some[0].worker != f"gateway.{cell}"
    ]
    if idle and (gateway_expected or any(queue.readers for queue in gateway)):
        yield _of_former_own(cell, idle, at)
    else:
        yield from _of_absent_agents(cell, idle)
    if gateway and not gateway_expected and not any(queue.readers for queue in gateway):
        yield _of_former_gateway(cell, gateway, at)


def _of_former_own(cell: str, agents: Sequence[Sequence[DurableQueue]], at: ManagementSeen) -> Finding:
    queues = [queue for some in agents for queue in some]
    owners = _count(len(agents), "agent")
    sentence = (
        f"They have no consumer: {_listed(queues)}. The cell's {owners} with such queues share queues now."
    )
    do = (
        f"If all agents of {cell} were restarted with agent_queues = shared, delete the queues:"
        f" {_deletion(queues, at)}. {_LOST}, and the gateway has relayed later orders."
    )
    return Finding("warning", f"queues agent.{cell}", sentence, do)


def _of_former_gateway(cell: str, queues: Sequence[DurableQueue], at: ManagementSeen) -> Finding:
    sentence = f"The cell's gateway does not run, and its queues have no consumer: {_listed(queues)}."
    do = (
        f"If {cell} has agent_queues = shared, start its conductor with that setting. If its agents have"
        f" queues of their own again, delete these: {_deletion(queues, at)}. {_LOST}, and agents have"
        " received later orders in their own queues."
    )
    return Finding("warning", f"queues gateway.{cell}", sentence, do)


def _of_absent_agents(cell: str, agents: Sequence[Sequence[DurableQueue]]) -> Iterator[Finding]:
    agents = sorted(agents, key=lambda some: -_messages(some))
    for some in agents[:AGENTS]:
        sentence = f"The agent does not run, and its queues have no consumer: {_listed(some)}."
        name = some[0].worker.split(".", 2)[2]
        yield Finding("warning", f"queues {some[0].worker}", sentence, _removal(cell, name))
    if rest := agents[AGENTS:]:
        queues = _listed([queue for some in rest for queue in some])
        sentence = f"{len(rest)} further agents do not run, and their queues have no consumer: {queues}."
        yield Finding("warning", f"queues agent.{cell}", sentence, _removal(cell, "AGENT"))


def _removal(cell: str, agent: str) -> str:
    return (
        f"Start it. If it will not return: `berth cell agent delete {cell} {agent}` (with --no-user if it has"
        " no RabbitMQ user) deletes its queues with their messages, and ends its orders."
    )


def _listed(queues: Sequence[DurableQueue]) -> str:
    """Return the names and depths of the deepest queues, and the number and total depth of the rest."""
    deepest = sorted(queues, key=lambda queue: (-queue.messages, queue.name))
    named = [f"{queue.at_broker} ({_count(queue.messages, 'message')})" for queue in deepest[:QUEUES]]
    rest = deepest[QUEUES:]
    more = f" and {len(rest)} more ({_count(_messages(rest), 'message')})" if rest else ""
    return ", ".join(named) + more


def _deletion(queues: Sequence[DurableQueue], at: ManagementSeen) -> str:
    """Return a shell command that deletes queues without a consumer at the broker `at`: those of the cell's
    gateway if the first of `queues` is the gateway's, else those of all agents of the cell.
    """
    vhost = "" if at.vhost == "/" else f" -p {at.vhost}"
    first = queues[0]
    prefix = first.at_broker.removesuffix(first.name.replace("*", "+"))
    begin = prefix + (
        f"{first.worker}:" if first.worker == f"gateway.{first.cell}" else f"agent.{first.cell}."
    )
    listed = f"rabbitmqctl -q list_queues{vhost} --no-table-headers name consumers"
    idle = f"""$2 == 0 && index($1, "{begin}") == 1 {{print $1}}"""
    return f"`{listed} | awk '{idle}' | xargs -n 1 rabbitmqctl{vhost} delete_queue`"


def _messages(queues: Iterable[DurableQueue]) -> int:
    return sum(queue.messages for queue in queues)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"
