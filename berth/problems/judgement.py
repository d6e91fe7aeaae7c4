"""Converts the facts of a running berth to problems of the kernel, without I/O. Facts with the same cause
make one problem: the hosts of a silent agent are counted in its line, and the queues of a silent worker in
that of the worker.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from berth.problems import kinds
from bus.host_health import NO_HEARTBEAT, HostHealth
from bus.problems import KnownProblem, ProblemKind, earliest, most_severe_first
from bus.worker import may_lack_consumer
from control_room.kit.words import listed, several

SLOW_SECONDS = 2.0  # a worker that takes longer to answer a simple query is slow
DEEP = 1000  # messages in a queue from which its consumers may be behind
DRAIN_SECONDS = 60.0  # a deep queue that becomes empty within this time is no problem
RESTART_SECONDS = 3600.0  # for which an unexpected restart is shown
ENDS_SECONDS = 900.0  # period over which failed builds are counted
LEAST_ENDS = 5  # ended builds in this period, below which no share is judged
FAILED_SHARE = 0.1
REFUSED_SECONDS = 1800.0  # period over which builds without a host are counted
MOST_REFUSED = 20
DISABLED_DAYS = 7
SHOWN = 5  # names in a sentence


class WorkerFact(msgspec.Struct, frozen=True):
    """A worker that must answer, and its response time; None: it did not answer."""

    name: str
    seconds: float | None = None


class QueueFact(msgspec.Struct, frozen=True):
    """A durable queue of a worker, as counted at two moments; `later` are `seconds` after `messages`."""

    name: str
    worker: str
    messages: int = 0
    readers: int = 0
    later: int = 0
    seconds: float = 1.0


class LettersFact(msgspec.Struct, frozen=True):
    """The number of dead letters, the time of the oldest, and the queues of those that were read."""

    count: int = 0
    oldest: float = 0.0
    queues: tuple[str, ...] = ()  # the queue with the most letters first


class ClosedHost(msgspec.Struct, frozen=True):
    """A host that an operator has forced down or disabled, and since when (0: unknown)."""

    root: str
    name: str
    cell: str = ""
    is_forced_down: bool = False
    since: float = 0.0


class RestartFact(msgspec.Struct, frozen=True):
    """A start of a process after it had ended without being stopped."""

    process: str
    at: float


class FailedNode(msgspec.Struct, frozen=True):
    """An Ironic node in a state in which Ironic waits for an operator."""

    name: str
    state: str
    since: float = 0.0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a running berth, as it was read at one time."""

    now: float
    broker: str | None = None  # why the message broker cannot be reached; None: it can
    workers: tuple[WorkerFact, ...] = ()
    queues: tuple[QueueFact, ...] = ()
    letters: LettersFact = LettersFact()
    health: tuple[HostHealth, ...] = ()  # of hosts that are not up
    closed: tuple[ClosedHost, ...] = ()
    disabled_cells: tuple[str, ...] = ()
    restarts: tuple[RestartFact, ...] = ()
    ends: Mapping[str, tuple[int, int]] = {}  # cell → failed builds, and ended ones
    refused: int = 0  # builds without a host
    stuck_nodes: tuple[FailedNode, ...] = ()
    ironic: str = ""  # why Ironic's API cannot be read


def problems_of(facts: Facts, of_features: Iterable[KnownProblem] = ()) -> list[KnownProblem]:
    """Return the problems that the facts show, with those of features, the most severe first."""
    found = [
        *_broker(facts),
        *_workers(facts),
        *_agents(facts),
        *_hosts(facts),
        *_letters(facts),
        *_queues(facts),
        *_restarts(facts),
        *_builds(facts),
        *_cells(facts),
        *_ironic(facts),
        *of_features,
    ]
    return most_severe_first(found)


def _broker(facts: Facts) -> Iterator[KnownProblem]:
    if facts.broker is not None:
        yield kinds.BROKER_UNREACHABLE.problem("RabbitMQ", worker="this process", at=facts.broker)


def _silent(facts: Facts) -> dict[str, None]:
    """Return the workers that do not answer, or none of whose queues has a consumer."""
    silent = {worker.name: None for worker in facts.workers if worker.seconds is None}
    queues: dict[str, list[QueueFact]] = {}
    for queue in facts.queues:
        queues.setdefault(queue.worker, []).append(queue)
    for worker, of_worker in queues.items():
        if all(not queue.readers for queue in of_worker):
            silent[worker] = None
    return silent


def _workers(facts: Facts) -> Iterator[KnownProblem]:
    silent = _silent(facts)
    if silent:
        cells = {name.partition(".")[2] for name in silent if name.startswith("conductor.")}
        late = [health for health in facts.health if health.cell in cells and _is_late(health)]
        waiting = sum(queue.later for queue in facts.queues if queue.worker in silent)
        about = listed([*silent], SHOWN)
        counted = [several(waiting, "message") + " in their queues"] * bool(waiting)
        counted += [several(len(late), "host") + " without heartbeats"] * bool(late)
        more = f" ({', '.join(counted)})" if counted else ""
        since = earliest(health.since for health in late)
        yield kinds.WORKER_SILENT.problem(about, since, workers=f"{about}{more}")
    slow = [worker for worker in facts.workers if (worker.seconds or 0.0) > SLOW_SECONDS]
    if slow:
        about = listed([worker.name for worker in slow], SHOWN)
        yield kinds.WORKER_SLOW.problem(about, workers=about)


def _is_late(health: HostHealth) -> bool:
    """Return whether a host is down because its agent sends no heartbeats at all."""
    return health.availability == "down" and health.why.startswith(NO_HEARTBEAT)


def _agents(facts: Facts) -> Iterator[KnownProblem]:
    """Yield a problem for each cell with silent agents, unless its conductor is silent as well: then they
    have the same cause.
    """
    silent = _silent(facts)
    by_cell: dict[str, list[HostHealth]] = {}
    for health in facts.health:
        if _is_late(health) and f"conductor.{health.cell}" not in silent:
            by_cell.setdefault(health.cell, []).append(health)
    for cell, hosts in sorted(by_cell.items()):
        agents = listed([*dict.fromkeys(sorted(health.agent for health in hosts))], SHOWN)
        since = earliest(health.since for health in hosts)
        yield kinds.AGENT_LATE.problem(
            f"agents of {cell}", since, agents=agents, cell=cell, hosts=several(len(hosts), "host")
        )


def _hosts(facts: Facts) -> Iterator[KnownProblem]:
    marked = {host.root for host in facts.closed if host.is_forced_down}
    down = [
        health
        for health in facts.health
        if health.availability == "down" and not _is_late(health) and health.root not in marked
    ]
    if down:
        names = listed(sorted(health.host for health in down), SHOWN)
        since = earliest(health.since for health in down)
        yield kinds.HOST_DOWN.problem(names, since, hosts=names)
    reported = [
        ClosedHost(health.root, health.host, health.cell, is_forced_down=True)
        for health in facts.health
        if health.forced_down and health.root not in marked
    ]
    forced = [*(host for host in facts.closed if host.is_forced_down), *reported]
    yield from _closed(kinds.HOST_FORCED_DOWN, forced)
    until = facts.now - DISABLED_DAYS * 86_400
    long = [host for host in facts.closed if not host.is_forced_down and 0 < host.since <= until]
    yield from _closed(kinds.HOST_DISABLED_LONG, long, days=DISABLED_DAYS)
    yield from _disabled_by_agents(facts)


def _disabled_by_agents(facts: Facts) -> Iterator[KnownProblem]:
    by_reason: dict[str, list[ClosedHost]] = {}
    for health in facts.health:
        if health.availability != "down" and not health.enabled and not health.forced_down:
            host = ClosedHost(health.root, health.host, health.cell)
            by_reason.setdefault(health.why_disabled.rstrip(".") or "without a reason", []).append(host)
    for why, hosts in sorted(by_reason.items()):
        yield from _closed(kinds.HOST_DISABLED_BY_AGENT, hosts, why=why)


def _closed(kind: ProblemKind, hosts: Sequence[ClosedHost], **values: object) -> Iterator[KnownProblem]:
    if hosts:
        hosts = sorted(hosts, key=lambda host: host.name)
        names, first = listed([host.name for host in hosts], SHOWN), hosts[0]
        since = earliest(host.since for host in hosts)
        yield kind.problem(names, since, hosts=names, first=first.name, root=first.root, **values)


def _letters(facts: Facts) -> Iterator[KnownProblem]:
    letters = facts.letters
    if letters.count:
        queues = listed(letters.queues, SHOWN) or "unknown queues"
        yield kinds.DEAD_LETTERS.problem("dead letters", letters.oldest, count=letters.count, queues=queues)


def _queues(facts: Facts) -> Iterator[KnownProblem]:
    silent = _silent(facts)
    unread: dict[str, list[QueueFact]] = {}
    for queue in facts.queues:
        is_unread = not queue.readers and not may_lack_consumer(queue.name, queue.later)
        if is_unread and queue.worker not in silent:
            unread.setdefault(queue.worker, []).append(queue)
    for worker, queues in unread.items():
        names, count = listed([queue.name for queue in queues], SHOWN), sum(each.later for each in queues)
        waiting = several(count, "message") if count else "no messages"
        yield kinds.QUEUE_UNREAD.problem(worker, queues=names, messages=waiting)
    deep = [queue for queue in facts.queues if queue.readers and is_behind(queue)]
    if deep:
        names = listed([queue.name for queue in deep], SHOWN)
        messages = several(sum(queue.later for queue in deep), "message")
        yield kinds.LAG.problem(names, messages=messages, queues=names)


def is_behind(queue: QueueFact) -> bool:
    """Return whether a queue has many messages and will not be empty soon at its present rate."""
    drained = (queue.messages - queue.later) / queue.seconds
    return queue.later >= DEEP and (drained <= 0 or queue.later / drained > DRAIN_SECONDS)


def _restarts(facts: Facts) -> Iterator[KnownProblem]:
    by_process: dict[str, list[float]] = {}
    for restart in facts.restarts:
        if facts.now - restart.at <= RESTART_SECONDS:
            by_process.setdefault(restart.process, []).append(restart.at)
    for process, times in sorted(by_process.items()):
        often = "once" if len(times) == 1 else f"{len(times)} times"
        yield kinds.PROCESS_RESTARTED.problem(
            process, max(times), process=process, times=f"{often} in the last hour"
        )


def _builds(facts: Facts) -> Iterator[KnownProblem]:
    for cell, (failed, ended) in sorted(facts.ends.items()):
        if ended >= LEAST_ENDS and failed > FAILED_SHARE * ended:
            yield kinds.BUILDS_FAIL.problem(f"builds of {cell}", cell=cell)
    if facts.refused > MOST_REFUSED:
        yield kinds.NO_HOST.problem("builds", most=MOST_REFUSED)


def _cells(facts: Facts) -> Iterator[KnownProblem]:
    if cells := facts.disabled_cells:
        named = listed([f"cell {cell}" for cell in cells], SHOWN)
        yield kinds.CELL_DISABLED.problem(named, cells=named, first=cells[0])


def _ironic(facts: Facts) -> Iterator[KnownProblem]:
    if facts.ironic:
        yield kinds.IRONIC_UNREACHABLE.problem("Ironic", why=facts.ironic.rstrip("."))
    by_state: dict[str, list[FailedNode]] = {}
    for node in facts.stuck_nodes:
        by_state.setdefault(node.state, []).append(node)
    for state, nodes in sorted(by_state.items()):
        names = sorted(node.name for node in nodes)
        since = earliest(node.since for node in nodes)
        shown = listed(names, SHOWN)
        yield kinds.NODE_STUCK.problem(shown, since, state=state, nodes=shown, first=names[0])
