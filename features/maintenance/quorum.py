"""Asks agents of other hosts of the cell, in rounds, whether they reach a host without heartbeats."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.errors import Unroutable
from bus.guests import GuestsAsked, GuestsReported, HostsProbe, ProbedHost, ProbeResult
from features.maintenance.core.agent_votes import Voter, judge_votes, voters_for
from features.maintenance.hosts import HostView
from features.maintenance.messages import HostEvacuation
from scheduler_worker.extension import HostBook, Publish

FENCING = "fencing"  # address for the agents' answers, which every scheduler receives
ANSWER_SECONDS = 10.0  # seconds after which an agent without an answer has no vote
ROUND_SECONDS = 10.0  # seconds between two rounds

log = logging.getLogger(__name__)


@dataclass
class _Round:
    """A question to several agents, and their answers so far."""

    voters: Sequence[Voter]
    results: dict[str, ProbeResult] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, agent: str, result: ProbeResult) -> None:
        self.results[agent] = result
        if self.results.keys() >= {voter.agent for voter in self.voters}:
            self.complete.set()


@dataclass
class AgentQuorum:
    """Asks agents of other hosts whether they reach a host, before it counts as dead."""

    source: CandidateSource
    book: HostBook
    publish: Publish
    clock: Clock
    votes: int  # number of agents that must vote that they cannot reach the host
    seconds: float  # seconds for which the agents must vote so, in every round of questions
    pause: float = ROUND_SECONDS
    patience: float = ANSWER_SECONDS
    _rounds: dict[str, _Round] = field(default_factory=dict, init=False)  # id of the question → its round

    async def handle(self, reported: GuestsReported) -> None:
        """Add an agent's answer to its round; ignore an answer to another scheduler, or a late one."""
        if (result := reported.probed) is not None and (round_ := self._rounds.get(result.id)) is not None:
            round_.add(reported.agent, result)

    async def confirm(self, dead: HostEvacuation) -> tuple[bool, str]:
        """Return whether enough agents could not reach a host in every round of the configured time, and why.

        A killed scheduler forgets its rounds, and the next one begins again.
        """
        began = self.clock.monotonic()
        while True:
            is_off, why = await self._ask(dead)
            lasted = self.clock.monotonic() - began
            if not is_off or lasted >= self.seconds:
                return is_off, f"{why}, for {lasted:.0f} s" if is_off else why
            await asyncio.sleep(self.pause)

    async def _ask(self, dead: HostEvacuation) -> tuple[bool, str]:
        view = HostView.take(self.source, self.book, self.clock)
        own = view.hosts[dead.root].agent if dead.root in view.hosts else ""
        usable = sorted(
            (root, host)
            for root, host in view.guest_hosts().items()
            if host.cell == dead.cell and host.agent != own and root not in view.down
        )
        voters = voters_for(dead.root, {host.agent: root for root, host in usable}, self.votes)
        id_, round_ = self.clock.uuid(), _Round(voters)
        self._rounds[id_] = round_
        try:
            for voter in voters:
                control = view.hosts[voter.control]
                hosts = [(dead.root, dead.host), (control.uuid, control.host)]
                probe = HostsProbe(id=id_, hosts=tuple(self._probed(dead.cell, *host) for host in hosts))
                await self._publish(GuestsAsked(
                    cell=dead.cell, agent=voter.agent, builds=(), reply_to=FENCING, probe=probe
                ))  # fmt: skip
            async with asyncio.timeout(self.patience):
                await round_.complete.wait()
        except TimeoutError:
            log.info("agents that answered about host %s: %s", dead.host, sorted(round_.results))
        finally:
            del self._rounds[id_]
        return judge_votes(dead.root, voters, round_.results, self.votes)

    async def _publish(self, asked: GuestsAsked) -> None:
        try:
            await self.publish(asked)
        except Unroutable as problem:  # no answer is possible, so this agent has no vote
            log.info("agent %s cannot be asked: %s", asked.agent, problem)

    def _probed(self, cell: str, root: str, host: str) -> ProbedHost:
        state = self.book.state(cell, root)
        return ProbedHost(root, host, state.ip if state is not None else "")
