"""A berth on RabbitMQ and PostgreSQL with the hosts of a trace, which places its requests.

Placement, the scheduler and a conductor are processes, on new servers. The process of the benchmark is the
client, and the agent of all hosts, whose builds take no time.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any

import uvloop

from bench.loading import BenchBerth, a_worker, all_up, berth_on, placement_answers
from bench.own_servers import broker_and_database, own_directory
from bench.quality.cloud import (
    Asked,
    DeviceSpec,
    HostSpec,
    inventories,
    provider_id,
    request_for,
    request_ids,
)
from berth import composition
from berth.commands.run import ready
from berth.kit.publishing import each_message, publish
from berth.loadtest import percentile
from bus import topics
from bus.delivery.runner import Bus
from bus.messages import BuildDeleted, BuildDeleteRequested, BuildEnded, BuildRequested, BuildUnplaceable
from bus.vocabulary import Id
from compute_sim.core.provider_tree import ProviderTree
from compute_sim.machines import SimAgent, SimHost
from compute_sim.worker import compute_sim

CELL, AGENT, CLIENT = "c1", "trace", "quality"
PATIENCE = 60.0  # seconds without an answer after which a replay fails

Answer = BuildEnded | BuildUnplaceable | BuildDeleted
ANSWERS: tuple[topics.Topic[Answer], ...] = topics.BUILD_ENDED, topics.BUILD_UNPLACEABLE, topics.BUILD_DELETED


@dataclass(frozen=True)
class SpecDriver:
    """The driver of the devices of a host of a trace."""

    devices: tuple[DeviceSpec, ...]

    def update_provider_tree(self, tree: ProviderTree) -> None:
        for nth, device in enumerate(self.devices):
            name = tree.add(f"{tree.name}-{nth}")
            tree.give(name, **inventories(device.resources))
            tree.mark(name, *device.traits)


def sim_host(number: int, spec: HostSpec) -> SimHost:
    drivers = (SpecDriver(spec.devices),)
    return SimHost(
        provider_id(number), f"host-{number}", inventories(spec.resources), spec.traits, drivers=drivers
    )


@dataclass(eq=False)
class LiveCloud:
    """A cloud that is a new berth with these settings. The times of the trace are ignored: the client waits
    for the end of each build and deletion.
    """

    hosts: Sequence[HostSpec]
    settings: Mapping[str, object]
    seed: int = 1

    def __post_init__(self) -> None:
        self._agent = SimAgent(AGENT, CELL, tuple([sim_host(*each) for each in enumerate(self.hosts)]))
        self._ids = request_ids(self.seed)
        self._seconds: list[float] = []  # from each request to its end
        self._stopping = asyncio.Event()
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        opened: Future[tuple[asyncio.AbstractEventLoop, Bus]] = Future()
        self._stack = ExitStack()
        try:
            self._berth = self._started()
            thread = self._stack.enter_context(ThreadPoolExecutor(1))  # where the agent can always run
            self._serving = thread.submit(uvloop.run, self._serve(opened))
            either: tuple[Future[Any], ...] = opened, self._serving
            wait(either, return_when=FIRST_COMPLETED)
            if self._serving.done():
                self._serving.result()
            self._loop, self._bus = opened.result()
        except BaseException:
            self._stack.close()
            raise

    def _started(self) -> BenchBerth:
        amqp_url, database_url = self._stack.enter_context(broker_and_database())
        state = self._stack.enter_context(own_directory())
        berth = berth_on(amqp_url, database_url, len(self.hosts), 1, state_dir=state, **self.settings)
        for worker in ("placement", "conductor", "scheduler"):
            self._stack.enter_context(a_worker(berth.environment, worker))
        return berth

    async def _serve(self, opened: "Future[tuple[asyncio.AbstractEventLoop, Bus]]") -> None:
        """Run the agent, and receive the answers to the client, until `close` is called."""
        settings = self._berth.settings
        async with Bus(composition.transport(settings, CLIENT)) as bus, asyncio.TaskGroup() as group:
            agent = compute_sim(self._agent, clock=bus.clock, providers=bus.asker(topics.CELL_PROVIDERS))
            await placement_answers(bus)
            serving = group.create_task(bus.serve(agent, self._stopping))
            await ready(bus, settings)
            receiving = []
            for topic in ANSWERS:
                answers = await bus.listen(topic.at(reply_to=CLIENT))
                receiving.append(group.create_task(each_message(answers, self._answers.put_nowait)))
            await all_up(bus, len(self.hosts))
            opened.set_result((asyncio.get_running_loop(), bus))
            await serving
            for task in receiving:
                task.cancel()

    def advance(self, to: float) -> None: ...

    def place(self, asked: Asked) -> Id | None:
        """Build an instance, and return its id; None if no host fits."""
        begun = monotonic()
        end = self._answer(request_for(asked, self._ids, CLIENT))
        self._seconds.append(monotonic() - begun)
        if isinstance(end, BuildUnplaceable):
            return None
        assert isinstance(end, BuildEnded) and end.status == "active", end
        return end.build

    def release(self, held: Id) -> None:
        deleted = self._answer(BuildDeleteRequested(build=held, cell=CELL, reply_to=CLIENT))
        assert isinstance(deleted, BuildDeleted) and not deleted.refused, deleted

    def close(self) -> None:
        """Audit the databases, and stop berth and the servers."""
        try:
            if not self._serving.done():
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._serving.result()
            self._berth.judge()
        finally:
            self._stack.close()
        p50, p99 = [1000 * percentile(self._seconds, share) for share in (0.5, 0.99)]
        print(f"{len(self._seconds)} requests, p50 {p50:.0f} ms, p99 {p99:.0f} ms", file=sys.stderr)

    def _answer(self, question: BuildRequested | BuildDeleteRequested) -> Answer:
        return asyncio.run_coroutine_threadsafe(self._answered(question), self._loop).result(PATIENCE)

    async def _answered(self, question: BuildRequested | BuildDeleteRequested) -> Answer:
        await publish(self._bus, question)
        while True:
            answer = await self._answers.get()
            if _is_end(answer, question):  # a repeated message may be the end of an earlier request
                return answer


def _is_end(answer: Answer, question: BuildRequested | BuildDeleteRequested) -> bool:
    if isinstance(question, BuildRequested):
        return not isinstance(answer, BuildDeleted) and answer.request == question.request
    return isinstance(answer, BuildDeleted) and answer.build == question.build
