"""Which agents are heard of, and how long each may be silent: by number, so that all are judged at once."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from bus.candidates import Bools
from bus.messages import HostReported
from scheduler_worker.core.columns import Numbers

LEAST_SILENCE = 10.0  # nobody is down for being silent this long, however short its period
PERIODS = 3  # nor for missing fewer reports than this
FORGOTTEN_PERIODS = 60  # who has missed so many reports is forgotten, after ten minutes at the least
LEAST_REMEMBERED = 600.0
NEVER = -np.inf

AgentKey = tuple[str, str]  # cell and name: no cell speaks for another's agent, whatever it is called


class Listening:
    """How long it was listened, in seconds: what was not heard while our own ears were away is no verdict.

    A stretch in which nothing at all was heard may be our own fault, and it cannot be known. It counts as no
    longer than it takes until the next report was due.
    """

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self.due = LEAST_SILENCE  # the shortest period of all who are heard
        self._last = now

    def heard(self, now: float) -> None:
        """Something was: a report, a request, an answer."""
        self.seconds += min(max(now - self._last, 0.0), self.due)
        self._last = now

    def deaf_until(self, now: float) -> None:
        """Whatever has been since then does not count."""
        self._last = now


@dataclass(slots=True)
class HeardAgent:
    """When it was heard, and which of its reports is the newest."""

    number: int
    heard: float  # by the seconds that it was listened
    at: float  # by the clock
    period: float
    sequence: int
    run: str
    life: int = 0  # counts its restarts
    silence: float = field(init=False)  # how long it may be silent

    def __post_init__(self) -> None:
        self.reports_every(self.period)

    def reports_every(self, period: float) -> None:
        self.period = period
        self.silence = max(PERIODS * period, LEAST_SILENCE)

    @property
    def remembered(self) -> float:
        return max(FORGOTTEN_PERIODS * self.period, LEAST_REMEMBERED)


class Agents:
    """All that were heard of, the one heard last comes last; and those that placement names."""

    def __init__(self, listening: Listening, grace: float) -> None:
        self.grace = grace
        self.opened = 0.0  # by the seconds that it was listened
        self._listening = listening
        self._known: OrderedDict[AgentKey, HeardAgent] = OrderedDict()
        self._numbers: dict[AgentKey, int] = {}
        self._of_cell: Counter[str] = Counter()  # how many are known
        self._heard: Numbers = np.full(64, NEVER)
        self._silence: Numbers = np.zeros(64)

    def __len__(self) -> int:
        return len(self._known)

    def hear(self, report: HostReported, now: float) -> HeardAgent:
        """The agent that says this, heard just now unless this is an older report.

        A new run counts from the beginning. Agents that do not say which run they are may do so, too, when
        they were silent for so long that they must have been away.
        """
        name, listened = (report.cell, report.agent), self._listening.seconds
        agent = self._known.get(name)
        if agent is None:
            number = self.number(name)
            agent = HeardAgent(number, listened, now, report.period, report.sequence, report.run)
            self._known[name] = agent
            self._of_cell[report.cell] += 1
        elif report.run != agent.run or (
            report.sequence < agent.sequence and listened - agent.heard > agent.silence
        ):
            agent.run, agent.life, agent.sequence = report.run, agent.life + 1, report.sequence
        elif report.sequence <= agent.sequence:
            return agent
        agent.heard, agent.at = listened, now
        agent.sequence = report.sequence
        if report.period != agent.period:
            agent.reports_every(report.period)
        self._heard[agent.number] = listened
        self._silence[agent.number] = agent.silence
        self._listening.due = max(min(self._listening.due, report.period), 1.0)
        self._known.move_to_end(name)
        return agent

    def down(self, key: AgentKey, now: float) -> str:
        """Why the hosts of this agent are held to be down; empty when they are not."""
        known, listened = self._known.get(key), self._listening.seconds
        _, name = key
        if known is None:
            if listened - self.opened < self.grace:
                return ""
            return f"down: nothing is heard of its agent {name}"
        if listened - known.heard <= known.silence:
            return ""
        return f"down: nothing heard of its agent {name} for {now - known.at:.0f} s"

    def up(self) -> Bools:
        """Of every number: is it held to be up?"""
        listened = self._listening.seconds
        up: Bools = listened - self._heard <= self._silence
        if listened - self.opened < self.grace:
            up |= self._heard == NEVER
        return up

    def number(self, name: AgentKey) -> int:
        """Its own from now on until all are numbered anew."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            if number == len(self._heard):
                self._heard = np.concatenate([self._heard, np.full(number, NEVER)])
                self._silence = np.concatenate([self._silence, np.zeros(number)])
        return number

    @property
    def crowded(self) -> bool:
        """Are most numbers those of agents nobody remembers?"""
        return len(self._numbers) > 2 * len(self._known) + 1024

    def number_anew(self, named: Iterable[AgentKey]) -> None:
        """These are placement's; all other numbers but those of who is heard are void."""
        self._numbers = {}
        for name in named:
            self._numbers.setdefault(name, len(self._numbers))
        for name in self._known:
            self._numbers.setdefault(name, len(self._numbers))
        size = max(64, 2 * len(self._numbers))
        self._heard, self._silence = np.full(size, NEVER), np.zeros(size)
        for name, agent in self._known.items():
            agent.number = self._numbers[name]
            self._heard[agent.number], self._silence[agent.number] = agent.heard, agent.silence

    def keep(self, most: int) -> None:
        """Beyond so many those heard longest ago are forgotten, of the cell that has the most."""
        while len(self._known) > most:
            [(most_of, _)] = self._of_cell.most_common(1)
            self._forget(next(key for key in self._known if key[0] == most_of))

    def tidy(self) -> None:
        """Forget who was not heard for very long, and see anew how soon the next report is due."""
        listened = self._listening.seconds
        while self._known:
            name, agent = next(iter(self._known.items()))
            if listened - agent.heard <= agent.remembered:
                break
            self._forget(name)
        periods = [one.period for one in self._known.values() if listened - one.heard <= one.silence]
        self._listening.due = max(min(periods, default=LEAST_SILENCE), 1.0)

    def _forget(self, name: AgentKey) -> None:
        self._heard[self._known.pop(name).number] = NEVER
        self._of_cell[name[0]] -= 1
