"""Reads the facts of a running berth over the bus, for the list of problems."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from msgspec import structs

from berth.features import features, modules_of, part_in
from berth.kit.problems import ProblemReader, ProblemsPart
from berth.problems import kinds
from berth.problems.judgement import (
    DEEP,
    ENDS_SECONDS,
    REFUSED_SECONDS,
    RESTART_SECONDS,
    ClosedHost,
    Facts,
    FailedNode,
    LettersFact,
    QueueFact,
    RestartFact,
    WorkerFact,
    problems_of,
)
from berth.settings import Settings
from berth.worker_roles import Role
from bus import topics
from bus.audit_trail import PROCESS_RESTART, FindActs
from bus.broker_urls import place
from bus.cells import FindCells
from bus.decisions import FindRefused
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, AnswerRefused, BrokerRefused, Unavailable, Undecodable
from bus.host_health import DISABLED, FORCED_DOWN, HostHealth, every_health
from bus.masking import printable
from bus.problems import KnownProblem
from bus.protocol import BusDepths, QueueSpec
from bus.queries import FindInstances
from bus.requests import ResourceGroup
from bus.resources import FindProviders
from bus.topics import Query
from bus.vocabulary import Message
from bus.worker import query_queue
from control_room.core.metal import FAILED_STATES

R = TypeVar("R", bound=Message)
T = TypeVar("T")
QueuesOf = Callable[[Settings], Mapping[Role, Sequence[QueueSpec]]]

ANSWER_SECONDS = 3.0  # after which a worker counts as silent
PAUSE_SECONDS = 1.0  # between two counts of a deep queue
IRONIC_SECONDS = 5.0  # to list the nodes that wait for an operator
RECENT_SECONDS = 3.0  # for which a read list is returned again
LETTERS = 100  # dead letters whose queues are read
MARKS = 500  # latest records of marked hosts that are read
MOST_CLOSED = 1000  # hosts that are read of those that operators disabled or forced down

_OF_AGENTS = ("compute", "metal")  # a late heartbeat shows that an agent does not run, not its queues
_MARK = "mark host"  # the act that disables a host or forces it down
_NO_ANSWER = (*UNANSWERED, BrokerRefused, Undecodable)

# the queries of the kernel's list; those of features are in their parts
KERNEL_ASKS: tuple[Query[Any, Any], ...] = (
    topics.CELLS,
    topics.PROVIDERS,
    topics.HOST_HEALTH,
    topics.FIND_ACTS,
    topics.REFUSED,
    topics.FIND_INSTANCES,
)


@dataclass(eq=False)
class ProblemList:
    """The list of problems of a berth. `queues_of` returns the durable queues of the workers in settings."""

    bus: Bus
    settings: Settings
    queues_of: QueuesOf
    _last: tuple[float, Sequence[KnownProblem]] | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _queues: dict[tuple[str, ...], Mapping[str, str]] = field(
        default_factory=dict
    )  # by cells: queue → worker

    async def recent(self) -> Sequence[KnownProblem]:
        """Return the problems as they were at most some seconds ago. Concurrent callers share one read."""
        async with self._lock:
            now = self.bus.clock.monotonic()
            if self._last is None or now - self._last[0] > RECENT_SECONDS:
                self._last = now, await self.read()
            return self._last[1]

    async def read(self, elsewhere: Sequence[QueueFact] = ()) -> list[KnownProblem]:
        """Return the present problems, the most severe first. `elsewhere`: queues at the separate brokers of
        cells, if the caller has read them.
        """
        reading = _Reading(self.bus, self.settings)
        cells = await reading.cells()
        if cells not in self._queues:
            self._queues = {cells: await asyncio.to_thread(self._expected, cells)}
        facts = await reading.facts(cells, self._queues[cells])
        of_features = await reading.of_features()
        facts = structs.replace(facts, queues=(*facts.queues, *elsewhere))
        return problems_of(reading.with_silent(facts), of_features)

    def _expected(self, cells: tuple[str, ...]) -> dict[str, str]:
        """Return the worker of each durable queue at the central broker, except queues of agents."""
        simulator, elsewhere = self.settings.simulator, {each.name for each in _ferried(self.settings)}
        few = {"hosts": min(simulator.hosts, len(cells)), "baremetal": min(simulator.baremetal, len(cells))}
        found = self.queues_of(self.settings.having(cells=cells, simulator=few))
        return {
            spec.name: str(role)
            for role, specs in found.items()
            if role.worker not in _OF_AGENTS and role.cell not in elsewhere
            for spec in specs
        }


def _ferried(settings: Settings) -> list[Any]:
    return [cell for cell in settings.every_cell if cell.ferry]


class _Reading:
    """Reads all facts once, and remembers which workers did not answer."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self._bus = bus
        self._settings = settings
        self._silent: dict[str, None] = {}
        self._seconds: dict[str, float] = {}
        self._registered: frozenset[str] = frozenset()
        self._disabled: tuple[str, ...] = ()

    async def cells(self) -> tuple[str, ...]:
        """Return the cells of the settings and the registered cells."""
        await self._find_absent()
        found = await self._asked("placement", topics.CELLS, FindCells(counted=False))
        if found is not None:
            registered = [cell for cell in found.cells if not cell.gone]
            self._registered = frozenset(cell.name for cell in registered)
            self._disabled = tuple(cell.name for cell in registered if not cell.enabled)
        return tuple(dict.fromkeys((*self._settings.cell_names, *sorted(self._registered))))

    async def _find_absent(self) -> None:
        """Note as silent the workers whose queries no process consumes: the queries would only wait."""
        asked = {query_queue(query.name).name: query.target for query in (topics.CELLS, topics.HOST_HEALTH)}
        with suppress(Unavailable, BrokerRefused):
            depths = (await self._bus.transport.depths([*asked])).queues
            self._silent |= {
                worker: None
                for queue, worker in asked.items()
                if queue not in depths or not depths[queue].readers
            }

    async def facts(self, cells: Sequence[str], queues: Mapping[str, str]) -> Facts:
        now = self._bus.clock.now()
        try:
            depths = await self._bus.transport.depths([*queues])
        except (Unavailable, BrokerRefused):
            return Facts(now=now, broker=self._place())
        counted = await self._counted(queues, depths)
        there = [cell for cell in cells if self._exists(cell, queues, depths)]
        unread = {queue for queue, depth in depths.queues.items() if not depth.readers}
        async with asyncio.TaskGroup() as group:
            letters = group.create_task(self._letters(depths.dead))
            health = group.create_task(self._health())
            closed = group.create_task(self._closed())
            restarts = group.create_task(self._restarts(now))
            refused = group.create_task(self._refused(now))
            ends = {cell: group.create_task(self._ends(cell, now, unread)) for cell in there}
            nodes = group.create_task(self._stuck_nodes())
        stuck, ironic = nodes.result()
        return Facts(
            now=now,
            queues=tuple(counted),
            letters=letters.result(),
            health=tuple(health.result()),
            closed=tuple(closed.result()),
            disabled_cells=self._disabled,
            restarts=tuple(restarts.result()),
            ends={cell: counts for cell, task in ends.items() if (counts := task.result()) is not None},
            refused=refused.result(),
            stuck_nodes=tuple(stuck),
            ironic=ironic,
        )

    def with_silent(self, facts: Facts) -> Facts:
        """Return the facts with the workers that were queried, also for problems of features."""
        names = [*self._seconds, *(name for name in self._silent if name not in self._seconds)]
        workers = [WorkerFact(name, None if name in self._silent else self._seconds[name]) for name in names]
        return structs.replace(facts, workers=tuple(workers))

    async def of_features(self) -> list[KnownProblem]:
        """Return the problems that features find. A feature whose query failed finds none; the worker that
        did not answer is a problem.
        """
        reader = ProblemReader(self._asker, self._bus.clock.now(), self._settings)
        found = await asyncio.gather(*(self._of(name, part, reader) for name, part in parts()))
        return [problem for problems in found for problem in problems]

    async def _of(self, name: str, part: ProblemsPart, reader: ProblemReader) -> Iterable[KnownProblem]:
        try:
            return await part.find(reader)
        except _NO_ANSWER as problem:
            if isinstance(problem, AnswerRefused):
                return [kinds.NOT_CHECKED.problem(name, what=name, why=str(problem).rstrip("."))]
            return ()

    def _asker(self, query: Query[Any, Any]) -> Callable[[Any], Awaitable[Any]]:
        ask = self._bus.asker(query, ANSWER_SECONDS)

        async def asked(question: Any) -> Any:
            if query.target in self._silent:
                raise Unavailable(f"{query.target} does not answer")  # do not wait for each query
            try:
                return await ask(question)
            except _NO_ANSWER as problem:
                if not isinstance(problem, AnswerRefused):
                    self._silent[query.target] = None
                raise

        return asked

    async def _asked(self, worker: str, query: Query[Any, R], question: Any) -> R | None:
        """Return a worker's answer, and note its response time; None if it does not answer."""
        return await self._timed(worker, lambda: self._bus.asker(query, ANSWER_SECONDS)(question))

    async def _timed(self, worker: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        if worker in self._silent:
            return None
        began = self._bus.clock.monotonic()
        try:
            answer = await ask()
        except _NO_ANSWER:
            self._silent[worker] = None
            return None
        self._seconds[worker] = self._bus.clock.monotonic() - began
        return answer

    def _place(self) -> str:
        url = self._settings.bus.amqp_url
        return f" at {place(url)}" if url else ""

    # Queues

    def _exists(self, cell: str, queues: Mapping[str, str], depths: BusDepths) -> bool:
        """Return whether a cell was ever made: it is registered or has a queue, or its broker is separate."""
        its = (queue for queue, worker in queues.items() if worker == f"conductor.{cell}")
        return (
            cell in self._registered
            or any(queue in depths.queues for queue in its)
            or any(each.name == cell for each in _ferried(self._settings))
        )

    async def _counted(self, queues: Mapping[str, str], depths: BusDepths) -> list[QueueFact]:
        """Return the existing queues; count the deep ones again, to see whether they become shorter."""
        deep = [queue for queue, depth in depths.queues.items() if depth.messages >= DEEP]
        later = dict(depths.queues)
        if deep:
            await asyncio.sleep(PAUSE_SECONDS)
            later |= (await self._bus.transport.depths(deep)).queues
        return [
            QueueFact(
                name, worker, depth.messages, depth.readers, later=later[name].messages, seconds=PAUSE_SECONDS
            )
            for name, worker in queues.items()
            if (depth := depths.queues.get(name)) is not None
        ]

    async def _letters(self, count: int) -> LettersFact:
        if not count:
            return LettersFact()
        try:
            letters = await self._bus.transport.dead_letters(LETTERS)
        except (Unavailable, BrokerRefused):
            return LettersFact(count)
        died = [letter.first_died or letter.died for letter in letters]
        by_queue = Counter(printable(letter.queue) for letter in letters)
        return LettersFact(count, min(died, default=0.0), tuple(name for name, _ in by_queue.most_common()))

    # Hosts

    async def _health(self) -> list[HostHealth]:
        async def read() -> list[HostHealth]:
            ask = self._bus.asker(topics.HOST_HEALTH, ANSWER_SECONDS)
            return [health async for health in every_health(ask)]

        return await self._timed("scheduler", read) or []

    async def _closed(self) -> list[ClosedHost]:
        """Return the hosts that operators have disabled or forced down, with the time of their last mark."""
        traits = ResourceGroup(required_any=((DISABLED, FORCED_DOWN),))
        query = FindProviders(like=traits, parts=("traits", "owner"), limit=MOST_CLOSED)
        found = await self._asked("placement", topics.PROVIDERS, query)
        if found is None:
            return []
        hosts = [
            provider
            for provider in found.providers
            if provider.parent is None and provider.agent and not provider.gone
            if FORCED_DOWN in provider.traits or DISABLED in provider.kept_traits
        ]
        if not hosts:
            return []
        marked = await self._marked()
        return [
            ClosedHost(
                host.id,
                host.host or host.name,
                host.cell,
                is_forced_down=FORCED_DOWN in host.traits,
                since=marked(host.id),
            )
            for host in hosts
        ]

    async def _marked(self) -> Callable[[str], float]:
        """Return a function that returns when an operator last marked a host; 0: unknown."""
        found = await self._asked("scheduler", topics.FIND_ACTS, FindActs(act=_MARK, limit=MARKS))
        if found is None:
            return lambda root: 0.0
        at: dict[str, float] = {}
        for record in reversed(found.records):  # the latest record is the first one
            at.update(dict.fromkeys((record.target, *record.targets), record.at))
        # Hosts that are not on this page were marked before its oldest record.
        before = found.records[-1].at if found.last and found.records else 0.0
        return lambda root: at.get(root, before)

    # Processes and builds

    async def _restarts(self, now: float) -> list[RestartFact]:
        query = FindActs(act=PROCESS_RESTART, since=now - RESTART_SECONDS, limit=MARKS)
        found = await self._asked("scheduler", topics.FIND_ACTS, query)
        return [RestartFact(record.target, record.at) for record in found.records] if found else []

    async def _refused(self, now: float) -> int:
        found = await self._asked("scheduler", topics.REFUSED, FindRefused(since=now - REFUSED_SECONDS))
        return len(found.builds) if found else 0

    async def _ends(self, cell: str, now: float, unread: set[str]) -> tuple[int, int] | None:
        """Return how many builds of a cell failed and how many ended recently; None without an answer."""
        worker = f"conductor.{cell}"
        question = FindInstances(
            cell=cell, statuses=("error",), since=now - ENDS_SECONDS, limit=1, count=True
        )
        if query_queue(topics.FIND_INSTANCES.key(question)).name in unread:
            self._silent[worker] = None  # without a consumer the query would wait
            return None
        failed = await self._asked(worker, topics.FIND_INSTANCES, question)
        if failed is None or not failed.count:
            return None
        every = structs.replace(question, statuses=("active", "error"))
        ended = await self._asked(worker, topics.FIND_INSTANCES, every)
        return None if ended is None else (failed.count, ended.count)

    # Ironic

    async def _stuck_nodes(self) -> tuple[list[FailedNode], str]:
        """Return the nodes for which Ironic waits for an operator, and why Ironic cannot be read, or ""."""
        if not self._settings.ironic.is_read:
            return [], ""
        from berth.ironic import access  # an HTTP client, which loads slowly
        from ironic_sync.api import IronicApi, IronicRefused

        try:
            async with asyncio.timeout(IRONIC_SECONDS), IronicApi(access(self._settings)) as api:
                found = await asyncio.gather(*(_in_state(api, state) for state in FAILED_STATES))
        except (IronicRefused, Unavailable) as problem:
            return [], str(problem)
        except TimeoutError:
            return [], f"it did not answer within {IRONIC_SECONDS:g} s"
        return [node for nodes in found for node in nodes], ""


async def _in_state(api: Any, state: str) -> list[FailedNode]:
    fields = ("uuid", "name", "provision_state", "provision_updated_at")
    return [
        FailedNode(printable(str(node.get("name") or node["uuid"])), state, _moment(node))
        async for page in api.nodes(fields=fields, provision_state=state)
        for node in page
        if node.get("provision_state") == state
    ]


def _moment(node: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(node.get("provision_updated_at"))).timestamp()
    except ValueError:
        return 0.0


def parts() -> list[tuple[str, ProblemsPart]]:
    """Return the problems parts of all features, each with the name of its feature."""
    return [
        (feature.name, part_in(module, ProblemsPart))
        for feature in features()
        for module in modules_of(feature, "problems")
    ]


def asks() -> tuple[Query[Any, Any], ...]:
    """Return the queries by which a process reads the list of problems."""
    of_features = (query for _, part in parts() for query in part.asks)
    return tuple(dict.fromkeys((*KERNEL_ASKS, *of_features)))
