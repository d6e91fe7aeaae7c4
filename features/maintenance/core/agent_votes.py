"""Decides by votes of agents of other hosts whether a host without heartbeats counts as switched off.

Each agent tries to reach the host, and a second host, its control. An agent that reaches the host prevents
the decision: the host is not dead. An agent that reaches neither may be disconnected itself, so it has no
vote.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from bus.guests import ProbeResult


@dataclass(frozen=True, slots=True)
class Voter:
    """An agent that is asked whether it reaches a host. It has a vote only if it also reaches `control`, a
    host of another agent.
    """

    agent: str
    control: str


def voters_for(dead: str, hosts: Mapping[str, str], votes: int) -> list[Voter]:
    """Return the agents to ask about a dead host: at most 2 × votes − 1, so that `votes` are a majority.

    `hosts` maps each agent that may vote to one of its hosts. The result depends only on the names; different
    dead hosts get different agents.
    """
    chosen = sorted(hosts, key=lambda agent: blake2b(f"{dead} {agent}".encode()).digest())[: 2 * votes - 1]
    return [Voter(agent, hosts[chosen[place - 1]]) for place, agent in enumerate(chosen)]


def judge_votes(
    dead: str, voters: Iterable[Voter], results: Mapping[str, ProbeResult], votes: int
) -> tuple[bool, str]:
    """Return whether at least `votes` agents cannot reach a host and no agent reaches it, and the reason as a
    sentence. `results` has the answers by agent.
    """
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
