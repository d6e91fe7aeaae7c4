"""The hosts as one scheduler knows them: their reports and health, placement's index, and its own choices."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np
from prometheus_client import Counter, Gauge

from bus.candidates import Bools, CandidateSource, Ints, PlacedHost
from bus.host_health import HostCapabilities, HostHealth, down_sentence
from bus.messages import HostReported
from bus.reports import HostState
from scheduler_worker.build_counts import FORGIVEN, BuildCounts
from scheduler_worker.core.demand import UNKNOWN_DEMAND, UsualShapes
from scheduler_worker.core.host_map import NEVER, NOBODY, HostKey, HostsNow, Numbers, numbered
from scheduler_worker.reporting_agents import Agents, Listening, ReportedAgent, Silence

CROSSED = Counter("berth_scheduler_crossings", "picks outside this scheduler's slice, which had no room")
UNPLACEABLE = Counter("berth_scheduler_unplaceable", "requests that ended without a host")
HOSTS = Gauge("berth_scheduler_hosts", "hosts by state, as this scheduler judges it", ["status"])


GRACE = 30.0  # seconds before a host without any heartbeat counts as down
MOST_HOSTS = 250_000  # hosts with a report; beyond, the oldest in the cell with the most hosts are deleted
TIDY_SECONDS = 10.0
JUDGED_EVERY = 1.0  # seconds; maximum delay until a silent host counts as down


@dataclass(slots=True)
class LastHostReport:
    """The last report of a host and the time of its arrival."""

    state: HostState
    slot: int  # of the host in the arrays of reported data
    agent: str
    version: tuple[int, int]  # the agent's restarts and sequence number: the higher pair is the newer report
    received: float  # the last heartbeat, in seconds of `Listening`
    remembered: float
    at: float  # the last heartbeat, by the monotonic clock


class HostBook(BuildCounts):
    """Decides from heartbeats and stored records whether each host is up, down or unknown.

    A host is down without a heartbeat for three periods (at least 10 seconds), or if it was recorded as down.
    It is unknown until its first heartbeat is overdue. Heartbeats of a cell count only for hosts of this
    cell: placement decides which cell a root is in. All times are of a monotonic clock.
    """

    def __init__(self, now: float, grace: float = GRACE) -> None:
        super().__init__(now)
        self._listening = Listening(now)
        self._agents = Agents(self._listening, grace)
        self._hosts: dict[str, OrderedDict[str, LastHostReport]] = {}  # last reports, by cell and root
        self._count = 0
        self._cell_of: dict[str, str] = {}  # root → cell of the host in placement
        self._tidied = now
        self._source: CandidateSource | None = None
        # the index's layout number when the hosts were last read; None: read again
        self._layout: int | None = None
        self._slot_at: Ints = np.zeros(0, np.intp)
        self._agent_at: Ints = np.zeros(0, np.intp)
        self._placed: Ints = np.zeros(0, np.intp)
        self._placed_hosts: list[PlacedHost] = []
        self._appeared: dict[str, float] = {}  # root of a new host → since when placement has it
        self._appeared_at: Numbers = np.zeros(0)
        self._records: dict[HostKey, HostHealth] = {}  # stored health of hosts without a heartbeat so far
        self._up: Bools = np.zeros(0, np.bool_)
        self._unknown: Bools = np.zeros(0, np.bool_)
        self._some_unknown: Bools | None = None
        self._judged: float | None = None  # when the health of all hosts was computed; None: compute again

    def opened(self, now: float) -> None:
        """Begin to measure the silence of agents: from now on this process can receive heartbeats."""
        self._listening.disconnected_until(now)
        self._agents.opened = self._listening.seconds
        self._judged = None

    def restore(self, records: Iterable[HostHealth]) -> None:
        """Use the stored health for hosts that have sent no heartbeat to this process so far."""
        for record in records:
            key = record.cell, record.root
            if record.root in self._hosts.get(record.cell, ()):
                continue
            self._records[key] = record
            self._columns.recorded_down[self._columns.slot(key)] = record.availability == "down"
            self._judged = None
            self._columns.put(record.cell, msgspec.convert(record, HostState, from_attributes=True))

    def listened(self, now: float) -> None:
        """Record that a message arrived: only while messages arrive do agents count as silent."""
        self._listening.received(now)
        if now - self._tidied > TIDY_SECONDS:
            self._tidied = now
            self._tidy(now)

    def handle(self, report: HostReported, now: float) -> None:
        """Apply the report of an agent about its hosts; ignore an outdated report."""
        self.listened(now)
        if self._agents.down((report.cell, report.agent), now):
            self._agent_returns(report)
        agent = self._agents.handle(report, now)
        version, times = (agent.life, report.sequence), (agent.received, agent.remembered, now)
        hosts = self._hosts.setdefault(report.cell, OrderedDict())
        slots: list[int] = []
        for state in report.hosts:
            known = hosts.get(state.root)
            if known is None or known.agent != report.agent or version > known.version:
                slot = known.slot if known is not None and known.state == state else self._put(report, state)
                hosts[state.root] = LastHostReport(state, slot, report.agent, version, *times)
                hosts.move_to_end(state.root)
                slots.append(slot)
        self._heartbeats(agent, np.array(slots, np.intp))
        if not hosts:
            del self._hosts[report.cell]
        while self._count > MOST_HOSTS:
            cell, most = max(self._hosts.items(), key=lambda item: len(item[1]))
            self._drop(cell, next(iter(most)))
        self._agents.keep(MOST_HOSTS)

    def state(self, cell: str, root: str) -> HostState | None:
        """Return the reported state of a host, or None if it has not reported."""
        hosts = self._hosts.get(cell)
        known = None if hosts is None else hosts.get(root)
        return None if known is None else known.state

    def down(self, cell: str, agent: str, now: float) -> str:
        """Return why the hosts of this agent are down; empty if they are not."""
        return self._agents.down((cell, agent), now)

    def why_down(self, cell: str, root: str, agent: str, now: float) -> str:
        """Return why a host is down; empty if it is up or unknown."""
        record = self._recorded_down(cell, root, agent)
        if record is not None:
            return down_sentence(record)
        silence = self._silence_of(cell, root, agent)
        return "" if silence is None else silence.sentence(now)

    def _recorded_down(self, cell: str, root: str, agent: str) -> HostHealth | None:
        record = self._records.get((cell, root))
        if record is None or record.availability != "down":
            return None
        known = self._agents.known((cell, agent))
        partial = known is not None and known.partial and self._agents.silence_of((cell, agent)) is None
        return None if partial else record

    def _silence_of(self, cell: str, root: str, agent: str) -> Silence | None:
        """Return why a host counts as silent, although its agent may report other hosts; None: it is not
        silent.
        """
        silence, known = self._agents.silence_of((cell, agent)), self._agents.known((cell, agent))
        if silence is not None or known is None or known.partial:
            return silence
        listened, slot = self._listening.seconds, self._columns.slots.get((cell, root), NOBODY)
        heartbeat = self._columns.heartbeat.item(slot)
        detail = f"though its agent {agent} reports other hosts"
        if heartbeat != NEVER:
            up = listened - heartbeat <= self._columns.silence.item(slot)
            at = self._hosts[cell][root].at
            return None if up else Silence(f"no heartbeat from it, {detail},", at)
        early = listened - max(known.first, self._appeared.get(root, 0.0)) <= known.silence
        return None if early else Silence(f"no heartbeat from it, {detail}")

    def snapshot(self, source: CandidateSource, now: float, demand: UsualShapes = UNKNOWN_DEMAND) -> HostsNow:
        """Return the present data of all hosts as arrays in the sequence of placement's index."""
        self._past(now)
        if source is not self._source or source.layout != self._layout:
            self._reread(source)
        self._place_new()
        self._judge(now)
        self._columns.read.pop("failures", None)  # the counts of failed builds decay with time
        return HostsNow(
            source=source,
            columns=self._columns,
            slot_at=self._slot_at,
            placed=self._placed,
            up=self._up,
            unknown=self._some_unknown,
            fading=1.0 / self._weight(now),
            why_down=lambda host: self.why_down(host.cell, host.uuid, host.agent, now),
            _read=self._columns.read,
            demand=demand,
        )

    def health(self, source: CandidateSource, now: float, unix_now: float) -> dict[HostKey, HostHealth]:
        """Return the health of the hosts that are down, unknown or disabled by their agents, by cell and
        root. `unix_now` is the time `now` (of the monotonic clock) in seconds since 1970.
        """
        self.snapshot(source, now)
        slots = self._slot_at.take(self._placed)
        closed = (self._columns.fact("enabled") == 0) | (self._columns.fact("forced_down") == 1)
        unusable = ~self._up.take(self._placed) | self._unknown.take(self._placed) | closed.take(slots)
        found = {}
        for index in np.flatnonzero(unusable).tolist():
            host = self._placed_hosts[index]
            if host.agent:
                found[host.cell, host.uuid] = self._health_of(host, now, unix_now)
        return found

    def capabilities(self, roots: Iterable[str], now: float, unix_now: float) -> list[HostCapabilities]:
        """Return the reported capabilities of the hosts, leaving out hosts without a heartbeat so far.
        `unix_now` is the time `now` (of the monotonic clock) in seconds since 1970.
        """
        found = []
        fields = [name for name in HostCapabilities.__struct_fields__ if name != "heard"]
        for root in roots:
            cell = self._cell_of.get(root, "")
            slot = self._columns.slots.get((cell, root), NOBODY)
            if (state := self._columns.states[slot]) is not None:
                report = self._hosts[cell].get(root) if cell in self._hosts else None
                heard = 0.0 if report is None else unix_now - (now - report.at)
                found.append(HostCapabilities(**{name: getattr(state, name) for name in fields}, heard=heard))
        return found

    def has(self, key: HostKey) -> bool:
        cell, root = key
        return self._cell_of.get(root) == cell

    def _health_of(self, host: PlacedHost, now: float, unix_now: float) -> HostHealth:
        cell, root = host.cell, host.uuid
        state = self._columns.states[self._columns.slots.get((cell, root), NOBODY)]
        record = self._recorded_down(cell, root, host.agent)
        silence = self._silence_of(cell, root, host.agent) if record is None else None
        report = self._hosts[cell].get(root) if cell in self._hosts else None
        at = None if silence is None else silence.at if report is None else report.at
        down = record is not None or silence is not None
        return HostHealth(
            root=root,
            host=host.host,
            cell=cell,
            agent=host.agent,
            availability="down" if down else "unknown" if self._unknown[host.position] else "up",
            since=record.since if record is not None else 0.0 if at is None else unix_now - (now - at),
            why=record.why if record is not None else "" if silence is None else silence.why.rstrip(","),
            enabled=state is None or state.enabled,
            why_disabled="" if state is None else state.why_disabled,
            forced_down=state is not None and state.forced_down,
        )

    def _judge(self, now: float) -> None:
        """Compute for all hosts which are up and which are unknown, by the rules of `why_down`."""
        if self._judged is not None and 0 <= now - self._judged < JUDGED_EVERY:
            return
        listened, columns, slots = self._listening.seconds, self._columns, self._slot_at
        received, silence, first, partial = self._agents.table_of(self._agent_at)
        alive = listened - received <= silence
        heartbeat, recorded = columns.heartbeat.take(slots), columns.recorded_down.take(slots) > 0
        beats = listened - heartbeat <= columns.silence.take(slots)
        new = alive & (listened - np.maximum(self._appeared_at, first) <= silence)
        early = new | (np.isneginf(received) & self._agents.early)
        fresh = alive & (beats | (partial > 0))
        self._unknown = np.isneginf(heartbeat) & early & ~recorded & ~fresh
        self._up = fresh | self._unknown
        unknown = self._unknown.take(self._placed)
        self._some_unknown = self._unknown if unknown.any() and not unknown.all() else None
        self._judged, columns.read = now, {}

    def _heartbeats(self, agent: ReportedAgent, slots: Ints) -> None:
        """Record a heartbeat of an agent's hosts."""
        columns = self._columns
        silent = agent.received - columns.heartbeat.take(slots) > columns.silence.take(slots)
        if silent.any():
            self._judged = None
            columns.recorded_down[slots.compress(silent)] = 0.0
        columns.heartbeat[slots], columns.silence[slots] = agent.received, agent.silence

    def _agent_returns(self, report: HostReported) -> None:
        self._judged = None
        if report.partial:  # hosts of this agent are up as long as the agent sends heartbeats
            agent = report.cell, report.agent
            for key, record in list(self._records.items()):
                if (record.cell, record.agent) == agent:
                    del self._records[key]
                    self._columns.recorded_down[self._columns.slots[key]] = 0.0

    def _put(self, report: HostReported, state: HostState) -> int:
        """Enter the changed state of a host; return the host's slot."""
        cell, root = report.cell, state.root
        known = self._hosts[cell].get(root)
        if known is None:
            self._count += 1
            self._records.pop((cell, root), None)
        elif state.instances > known.state.instances:
            self.built(cell, root)
        return self._columns.put(cell, state)

    def _drop(self, cell: str, root: str) -> None:
        del self._hosts[cell][root]
        self._count -= 1
        if not self._hosts[cell]:
            del self._hosts[cell]
        self._columns.forget((cell, root))

    def _place_new(self) -> None:
        columns = self._columns
        if columns.new:
            self._judged = None
        for cell, root in columns.new:
            position = None
            if self._source is not None and self._cell_of.get(root) == cell:
                position = self._source.position(root)
            if position is not None and position < len(self._slot_at):
                self._slot_at[position] = columns.slots[cell, root]
        columns.new.clear()

    def _reread(self, source: CandidateSource) -> None:
        """Read the hosts of the index again, and match them with the reports of agents."""
        placed = self._placed_hosts = list(source.hosts())
        positions = [host.position for host in placed]
        self._placed = np.array(positions, np.intp)
        self._cell_of = {host.uuid: host.cell for host in placed}
        named = [(host.cell, host.agent) for host in placed]
        self._agents.renumber(named)
        agents, slots = self._agents.number, self._columns.slots
        self._agent_at = numbered(positions, [agents(agent) for agent in named], source.size)
        keys = [slots.get((host.cell, host.uuid), NOBODY) for host in placed]
        self._slot_at = numbered(positions, keys, source.size)
        before, listened = self._appeared, self._listening.seconds
        new = [host.uuid for host, slot in zip(placed, keys, strict=True) if slot == NOBODY]
        self._appeared = {root: before.get(root, listened) for root in new}
        self._appeared_at = np.zeros(source.size)
        self._appeared_at[self._placed] = [self._appeared.get(host.uuid, 0.0) for host in placed]
        self._source, self._layout, self._judged = source, source.layout, None

    def _tidy(self, now: float) -> None:
        """Forget hosts and agents that have not reported for long."""
        self._past(now)
        self._agents.tidy()
        listened = self._listening.seconds
        for cell in list(self._hosts):
            while hosts := self._hosts.get(cell):
                root, host = next(iter(hosts.items()))
                if listened - host.received <= host.remembered:
                    break
                self._drop(cell, root)
        self._drop_slots(now)
        if self._agents.crowded:
            self._agents.renumber(())
            self._layout = None

    def _drop_slots(self, now: float) -> None:
        """If there are many array indices, free the indices of hosts without a report, a stored record,
        recent builds and failed builds.
        """
        columns = self._columns
        if len(columns.slots) <= 2 * self._count + 1024:
            return
        weight = self._weight(now)
        for key, slot in list(columns.slots.items()):
            cell, root = key
            failures = columns.failures[slot] / weight
            known = root in self._hosts.get(cell, ()) or key in self._records
            if not known and not columns.recent[slot] and failures < FORGIVEN:
                columns.drop(key)
        columns.new = [key for key in columns.new if key in columns.slots]
        self._layout = None
