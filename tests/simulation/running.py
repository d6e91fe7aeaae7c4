"""Runs simulated worlds: one by its seed, or many with a report of their failures."""

import gc
import random
import time
from dataclasses import dataclass, replace

from tests.simulation.faults import SERVER_FAULTS, FaultRates, with_faults
from tests.simulation.invariants import Broken
from tests.simulation.world import SimulatedWorld
from tests.support.virtual_time import Stuck, run

SWARM = "swarm"  # the faults of servers differ from seed to seed
SHORT, LONG = 2, 14  # requests of a world
_IN_SWARM = [name for name in SERVER_FAULTS if name != "statements"]
_LAST_EVENTS = 25
_COLLECTED_AFTER = 50_000  # allocations: a world leaves many cycles


@dataclass(frozen=True)
class WorldOptions:
    """The options that all worlds of a run share."""

    faults: str = SWARM
    requests: int = SHORT
    moves: bool | None = None  # None: in half of the worlds
    preempts: bool | None = None  # True: also with full hosts; None: in a third of the worlds
    headroom: bool = False  # without preemption
    metal: bool = False  # all requests are for nodes, which change often; without preemption


@dataclass(frozen=True)
class WorldOutcome:
    seed: int
    simulated: float  # seconds
    took: float  # seconds of one core
    steps: int
    victims: int = 0  # instances that were preempted
    losses: int = 0  # of hosts or racks with instances, replayed
    broken: str = ""
    last_events: tuple[str, ...] = ()


def make_world(
    seed: int, faults: FaultRates, options: WorldOptions, *, shared: bool = False
) -> SimulatedWorld:
    """Return the world of a seed. Half of the worlds have two of each worker."""
    moves, preempts = options.moves, options.preempts
    if preempts:  # most instances become active, so that there is something to preempt
        faults = replace(faults, reschedule=0.05, abort=0.02, hang=0.02)
    return SimulatedWorld(
        seed,
        faults,
        requests=options.requests,
        twins=seed % 2 == 1,
        moves=seed % 4 in (1, 2) if moves is None else moves,
        shared=shared,
        preempts=seed % 3 == 1 and not (options.headroom or options.metal) if preempts is None else preempts,
        headroom=options.headroom,
        metal=options.metal,
        full=bool(preempts),
    )


def swarm_faults(seed: int) -> FaultRates:
    """Return the rates of a seed: each fault of servers in one of two worlds, lost commits in one of four."""
    chance = random.Random(f"faults of {seed}")
    chosen = [name for name in _IN_SWARM if chance.random() < (0.25 if name == "commits" else 0.5)]
    return replace(with_faults(",".join(chosen)), crashes=chance.randint(0, 5))


def faults_of(seed: int, names: str) -> FaultRates:
    """Return the fault plan of a seed from the names of faults; with SWARM first, they are added to the
    seed's own. With failing statements there are fewer kills: a restart repairs what an error leaves behind.
    """
    first, _, more = names.partition(",")
    rates = with_faults(more, swarm_faults(seed)) if first == SWARM else with_faults(names)
    if rates.failing_statements and "crashes=" not in names:
        rates = replace(rates, crashes=random.Random(f"kills of {seed}").randint(0, 4))
    return rates


def attempt(seed: int, options: WorldOptions) -> WorldOutcome:
    """Run one world; return what happened, also if an invariant broke."""
    gc.set_threshold(_COLLECTED_AFTER)
    faults = faults_of(seed, options.faults)
    if options.headroom:  # after lost commits nothing is checked until the repair
        faults = replace(faults, lost_commits=0)
    shared = random.Random(f"shared queues of {seed}").random() < 0.25
    world = make_world(seed, faults, options, shared=shared)
    began, broken = time.process_time(), ""
    try:
        run(world.run())
    except (Broken, Stuck) as problem:
        broken = f"{type(problem).__name__}: {problem}"
    except Exception as problem:
        broken = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves(problem))
    took = time.process_time() - began
    last = tuple(event for event in world.history if " settled " not in event)[-_LAST_EVENTS:]
    losses = world.failover.losses if world.failover is not None else 0
    figures = world.seconds, took, world.steps, world.preempted_seen, losses
    return WorldOutcome(seed, *figures, broken, last if broken else ())


def leaves(problem: BaseException) -> list[BaseException]:
    """Return the exceptions in an exception group and its groups."""
    if not isinstance(problem, BaseExceptionGroup):
        return [problem]
    return [leaf for each in problem.exceptions for leaf in leaves(each)]
