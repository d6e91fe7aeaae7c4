"""What the hosts say of themselves, which of them are heard of at all, and where builds failed."""

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

import numpy as np

from bus.candidates import CandidateSource, Ints
from bus.messages import HostReported
from bus.reports import HostState
from scheduler_worker.agents import Agents, Listening
from scheduler_worker.core.columns import NOBODY, HostColumns, HostKey, numbered
from scheduler_worker.core.view import HostsNow

GRACE = 30.0  # how long it is listened before those who were never heard are held to be down
RECENT = 1.0  # how long a build of ours counts on top of what the host reports
MOST_HOSTS = 250_000  # beyond this the ones reported longest ago are forgotten, of the cell that has the most
TIDY_SECONDS = 10.0
HALVED_AFTER = 300.0  # seconds in which a failure comes to count half
FORGIVEN = 2.0**-10  # a failure that counts no more than this
FULL_SCALE = 64  # halvings after which the scale of failures is set anew


@dataclass(slots=True)
class HeardHost:
    """A host as it was last reported."""

    state: HostState
    agent: str
    cell: str
    said: tuple[int, int]  # the agent's life and sequence: which report is the newer
    heard: float
    remembered: float


class HostBook:
    """One page per host, written by host.reported. Nobody is called down before he could have been heard.

    A cell writes on the pages of its own hosts: what it says of another's root is on a page nobody reads, for
    placement says which cell a root is in.

    All times are those of a clock that never goes back.
    """

    def __init__(self, now: float, grace: float = GRACE, halved_after: float = HALVED_AFTER) -> None:
        self._listening = Listening(now)
        self._agents = Agents(self._listening, grace)
        self._hosts: dict[str, OrderedDict[str, HeardHost]] = {}  # by cell
        self._count = 0
        self._cell_of: dict[str, str] = {}  # root → the cell that placement has it in
        self._columns = HostColumns()
        self._zones: Counter[str] = Counter()
        self._tidied = now
        self._choices: deque[tuple[float, HostKey]] = deque()
        self._counted_until = now  # choices that counted until then, or less long, do so no more
        self._taken_back: Counter[HostKey] = Counter()  # of these, choices that came to nothing
        self._halved_after = halved_after
        self._whole = now  # a failure of then counts as one; later ones count more, so that all fade together
        self._source: CandidateSource | None = None
        self._layout: int | None = None  # of placement's memory, when it was last read; None: read it anew
        self._slot_at: Ints = np.zeros(0, np.intp)
        self._agent_at: Ints = np.zeros(0, np.intp)
        self._placed: Ints = np.zeros(0, np.intp)

    def opened(self, now: float) -> None:
        """From now on reports are listened to."""
        self._listening.deaf_until(now)
        self._agents.opened = self._listening.seconds

    def listened(self, now: float) -> None:
        """Our ears work: something else than a report came in."""
        self._listening.heard(now)
        if now - self._tidied > TIDY_SECONDS:
            self._tidied = now
            self._tidy(now)

    def hear(self, report: HostReported, now: float) -> None:
        """Take a report in; one that is older than what is known changes nothing."""
        self.listened(now)
        agent = self._agents.hear(report, now)
        said = (agent.life, report.sequence)
        hosts = self._hosts.setdefault(report.cell, OrderedDict())
        for state in report.hosts:
            known = hosts.get(state.root)
            if known is None or known.agent != report.agent or said > known.said:
                self._put(HeardHost(state, report.agent, report.cell, said, agent.heard, agent.remembered))
        if not hosts:
            del self._hosts[report.cell]
        while self._count > MOST_HOSTS:
            cell, most = max(self._hosts.items(), key=lambda one: len(one[1]))
            self._drop(cell, next(iter(most)))
        self._agents.keep(MOST_HOSTS)

    @property
    def cells(self) -> set[str]:
        """Those in which somebody is heard."""
        return set(self._hosts)

    @property
    def zones(self) -> set[str]:
        return set(self._zones)

    def __len__(self) -> int:
        return self._count

    def state(self, cell: str, root: str) -> HostState | None:
        hosts = self._hosts.get(cell)
        known = None if hosts is None else hosts.get(root)
        return None if known is None else known.state

    def down(self, cell: str, agent: str, now: float) -> str:
        """Why the hosts of this agent are held to be down; empty when they are not."""
        return self._agents.down((cell, agent), now)

    def level(self, source: CandidateSource, now: float) -> HostsNow:
        """All of it by the positions of placement's memory, for the searches of this moment."""
        self._past(now)
        if source is not self._source or source.layout != self._layout:
            self._read_anew(source)
        self._place_new()
        return HostsNow(
            source=source,
            columns=self._columns,
            slot_at=self._slot_at,
            agent_at=self._agent_at,
            placed=self._placed,
            up=self._agents.up(),
            fading=1.0 / self._weight(now),
            down=lambda cell, agent: self._agents.down((cell, agent), now),
        )

    # What befell builds that were sent there

    def chose(self, cell: str, root: str, now: float) -> None:
        """We send a build there."""
        key = cell, root
        self._choices.append((now + RECENT, key))
        slot = self._columns.slots.get(key)
        if slot is None:
            slot = self._columns.slot(key)
            self._place_new()
        self._columns.recent[slot] += 1

    def unchose(self, cell: str, root: str, at: float) -> None:
        """We send it elsewhere after all, which was chosen then. What counts no more is not taken back."""
        if at + RECENT <= self._counted_until:
            return
        key = cell, root
        self._columns.recent[self._columns.slots[key]] -= 1
        self._taken_back[key] += 1

    def recent(self, cell: str, root: str, now: float) -> int:
        """How many builds we sent there that its report may not count yet."""
        self._past(now)
        return int(self._columns.recent[self._columns.slots.get((cell, root), NOBODY)])

    def failed(self, cell: str, root: str, now: float) -> None:
        """A build failed there by the host's fault, as this cell says."""
        slot, weight = self._columns.slot((cell, root)), self._weight(now)
        self._columns.failures[slot] += weight

    def built(self, cell: str, root: str) -> None:
        """Something came to life there: half of what is held against the host is forgiven."""
        slot = self._columns.slots.get((cell, root), NOBODY)
        self._columns.failures[slot] /= 2

    def failures(self, cell: str, root: str, now: float) -> float:
        """How many builds failed there, each halved again and again as time goes by."""
        weight = self._weight(now)
        return float(self._columns.failures[self._columns.slots.get((cell, root), NOBODY)]) / weight

    def _weight(self, now: float) -> float:
        """What a failure of now counts, beside one of when the scale was set."""
        halvings = (now - self._whole) / self._halved_after
        if halvings > FULL_SCALE:
            failures = self._columns.failures
            failures *= 2.0**-halvings if halvings < 1000 else 0.0
            failures[failures < FORGIVEN] = 0.0
            self._whole, halvings = now, 0.0
        return float(2.0**halvings)

    def _past(self, now: float) -> None:
        """Choices of a while ago are in the reports by now."""
        choices, columns, taken_back = self._choices, self._columns, self._taken_back
        self._counted_until = max(self._counted_until, now)
        while choices and choices[0][0] <= now:
            key = choices.popleft()[1]
            if taken_back and taken_back[key]:
                taken_back[key] -= 1
            else:
                columns.recent[columns.slots[key]] -= 1
        if not choices and taken_back:
            taken_back.clear()

    # What is known of whom

    def _put(self, host: HeardHost) -> None:
        root, hosts = host.state.root, self._hosts[host.cell]
        known = hosts.get(root)
        hosts[root] = host
        hosts.move_to_end(root)
        self._count += known is None
        if known is None or known.state.zone != host.state.zone:
            if known is not None:
                self._discount(known)
            if host.state.zone:
                self._zones[host.state.zone] += 1
        self._columns.put(host.cell, host.state)
        if known is not None and host.state.instances > known.state.instances:
            self.built(host.cell, root)

    def _drop(self, cell: str, root: str) -> None:
        self._discount(self._hosts[cell].pop(root))
        self._count -= 1
        if not self._hosts[cell]:
            del self._hosts[cell]
        self._columns.forget((cell, root))

    def _discount(self, host: HeardHost) -> None:
        zone = host.state.zone
        self._zones[zone] -= 1
        if self._zones[zone] <= 0:
            del self._zones[zone]

    def _place_new(self) -> None:
        """Those that were first spoken of since, where placement has them."""
        columns = self._columns
        for cell, root in columns.new:
            position = None
            if self._source is not None and self._cell_of.get(root) == cell:
                position = self._source.position(root)
            if position is not None and position < len(self._slot_at):
                self._slot_at[position] = columns.slots[cell, root]
        columns.new.clear()

    def _read_anew(self, source: CandidateSource) -> None:
        """Where placement has which host, and whose it is."""
        placed = source.hosts()
        positions = [host.position for host in placed]
        self._placed = np.array(positions, np.intp)
        self._cell_of = {host.uuid: host.cell for host in placed}
        named = [(host.cell, host.agent) for host in placed]
        self._agents.number_anew(named)
        agents, slots = self._agents.number, self._columns.slots
        self._agent_at = numbered(positions, [agents(agent) for agent in named], source.size)
        keys = [slots.get((host.cell, host.uuid), NOBODY) for host in placed]
        self._slot_at = numbered(positions, keys, source.size)
        self._source, self._layout = source, source.layout

    def _tidy(self, now: float) -> None:
        """Forget who was not heard for very long."""
        self._past(now)
        self._agents.tidy()
        listened = self._listening.seconds
        for cell in list(self._hosts):
            while hosts := self._hosts.get(cell):
                root, host = next(iter(hosts.items()))
                if listened - host.heard <= host.remembered:
                    break
                self._drop(cell, root)
        self._drop_slots(now)
        if self._agents.crowded:
            self._agents.number_anew(())
            self._layout = None

    def _drop_slots(self, now: float) -> None:
        """Of hosts that nothing is known of any more. Most that have a slot are heard, so this is rare."""
        columns = self._columns
        if len(columns.slots) <= 2 * self._count + 1024:
            return
        weight = self._weight(now)
        for key, slot in list(columns.slots.items()):
            cell, root = key
            failures = columns.failures[slot] / weight
            if root not in self._hosts.get(cell, ()) and not columns.recent[slot] and failures < FORGIVEN:
                columns.drop(key)
        columns.new = [key for key in columns.new if key in columns.slots]
        self._layout = None
