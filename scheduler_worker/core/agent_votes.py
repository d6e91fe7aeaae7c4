"""Decides by the answers of agents of other hosts whether a host is confirmed as off.

A host that only some agents cannot reach is not dead, so a single agent that reaches the host prevents the
confirmation. An agent that does not reach its control host either may be disconnected itself: it has no vote.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from bus.guests import ProbeResult


@dataclass(frozen=True, slots=True)
class Voter:
    """An agent that is asked about a host, and another host that it must reach to have a vote."""

    agent: str
    control: str


def voters_for(dead: str, hosts: Mapping[str, str], votes: int) -> list[Voter]:
    """Return the agents to ask about a dead host: at most 2 × votes − 1, so that `votes` are a majority.

    `hosts`: for each agent that may vote, one of its hosts. The choice follows from the names, and differs
    from host to host.
    """
    chosen = sorted(hosts, key=lambda agent: blake2b(f"{dead} {agent}".encode()).digest())[: 2 * votes - 1]
    return [Voter(agent, hosts[chosen[place - 1]]) for place, agent in enumerate(chosen)]


def judge_votes(
    dead: str, voters: Iterable[Voter], results: Mapping[str, ProbeResult], votes: int
) -> tuple[bool, str]:
    """Return whether the agents confirm that a host is off, and a sentence that says why."""
    asked, against = 0, list[str]()
    for voter in voters:
        asked += 1
        result = results.get(voter.agent)
        if result is None:
            continue
        if dead in result.reached:
            return False, f"agent {voter.agent} reaches it"
        if dead in result.unreached and voter.control in result.reached:
            against.append(voter.agent)
    if len(against) < votes:
        return False, f"{len(against)} of {asked} agents voted that they cannot reach it, and {votes} must"
    return True, f"{len(against)} of {asked} agents cannot reach it, and none reaches it"
