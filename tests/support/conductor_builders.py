"""Builders for tests of a cell: builds, agents' reports, and a placement with bookkeeping."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from bus.agent_builds import sent_allocations
from bus.claims import (
    Choice,
    ClaimAnswered,
    ClaimRequested,
    ReleaseAnswered,
    ReleaseRequested,
    holder_consumer,
)
from bus.errors import Unavailable
from bus.messages import (
    AgentReported,
    BuildDeleted,
    BuildDeleteRequested,
    BuildEnded,
    BuildOrdered,
    BuildPlaced,
    DestroyOrdered,
    HostFailed,
    Selection,
)
from bus.requests import BuildSpec, Flavor
from bus.vocabulary import Message
from bus.worker import Outcome
from cell_conductor.builds import Builds
from cell_conductor.core.build import Build, Effects
from cell_conductor.core.events import AttemptLimits, Event
from cell_conductor.core.step import step as step_with
from tests.support.claims_in_memory import ClaimsInMemory, Holding
from tests.support.feature_parts import conductor_parts
from tests.support.ids import uid

Q = TypeVar("Q")
A = TypeVar("A")
CELL = "cell1"
SPEC = BuildSpec(flavor=Flavor(name="small", vcpus=1))


PARTS = conductor_parts(CELL)
COURSES = tuple(course for part in PARTS for course in part.courses)
FEATURES: dict[str, Any] = {"parts": PARTS}  # what `Builds` needs of all features


def step(
    build: Build | None, event: Event, now: float, limits: AttemptLimits
) -> tuple[Build | None, Effects]:
    """Return a build after an event, with the courses of all features."""
    return step_with(build, event, now, limits, COURSES)


def kernel_step(
    build: Build | None, event: Event, now: float, limits: AttemptLimits
) -> tuple[Build | None, Effects]:
    """Return a build after an event, without features."""
    return step_with(build, event, now, limits, ())


def a_selection(number: int) -> Selection:
    root = uid(number, "c")
    choice = Choice(allocations={root: {"VCPU": 1}}, shapes={root: 1})
    return Selection(root=root, host=f"host{number}", agent=f"agent{number}", choice=choice)


def a_placed(build: int = 1, *, hosts: int = 3, generation: int = 1) -> BuildPlaced:
    """Return a build that is placed on host0, with the alternates host1, host2, ..."""
    selections = tuple(a_selection(number) for number in range(hosts))
    return BuildPlaced(
        build=uid(build, "b"), request=uid(build, "a"), cell=CELL, chosen=selections[0],
        generation=generation, alternates=selections[1:], spec=SPEC,
    )  # fmt: skip


def an_agent_report(order: BuildOrdered | DestroyOrdered, outcome: str, **more: Any) -> AgentReported:
    return AgentReported(**order.guest_fields(), outcome=outcome, **more)  # type: ignore[arg-type]


def a_build_order(placed: BuildPlaced, attempt: int = 1, at: int | None = None) -> BuildOrdered:
    host = (placed.chosen, *placed.alternates)[attempt - 1 if at is None else at]
    return BuildOrdered(
        build=placed.build, attempt=attempt, cell=placed.cell, agent=host.agent, root=host.root,
        host=host.host, spec=placed.spec, mappings=host.mappings,
        allocations=sent_allocations(host.root, placed.spec, host.choice.allocations),
    )  # fmt: skip


def a_destroy_order(placed: BuildPlaced, attempt: int = 1, at: int | None = None) -> DestroyOrdered:
    return DestroyOrdered(**a_build_order(placed, attempt, at).guest_fields())


def a_delete(placed: BuildPlaced, reply_to: str = "") -> BuildDeleteRequested:
    return BuildDeleteRequested(build=placed.build, cell=placed.cell, reply_to=reply_to)


async def deliver(builds: Builds, message: Message) -> Outcome:
    """Return the outcome of one message at a conductor with the parts of all features."""
    handlers: dict[type[Message], Callable[..., Awaitable[Sequence[Outcome]]]] = {
        BuildPlaced: builds.start_many,
        AgentReported: builds.report_many,
        **{row.message: row.handler for part in PARTS for row in part.rows(builds).consumes},
    }
    handle: Callable[..., Awaitable[Sequence[Outcome]]] = handlers.get(type(message), builds.receive_many)
    return (await handle([message]))[0]


class Books(ClaimsInMemory):
    """Placement as a conductor sees it: every host has capacity, except those in `full`."""

    def __init__(self, *placed: BuildPlaced) -> None:
        super().__init__()
        self.full: set[str] = set()
        self.away = False
        self.answers_lost = 0  # the number of requests that are executed without an answer
        self.asked: list[int] = []  # the number of requests in each batch
        for message in placed:
            self.hold(message)

    def free_at(self, root: str) -> Mapping[str, int] | None:
        return {} if root in self.full else None

    def hold(self, placed: BuildPlaced) -> None:
        self.held[placed.build] = Holding(placed.generation, placed.chosen.choice.allocations)

    async def claim_many(self, questions: Sequence[ClaimRequested]) -> Sequence[ClaimAnswered]:
        return self._answers(questions, self.claim)

    async def release_many(self, questions: Sequence[ReleaseRequested]) -> Sequence[ReleaseAnswered]:
        return self._answers(questions, lambda question: ReleaseAnswered(result=self.release(question)))

    def _answers(self, questions: Sequence[Q], answer: Callable[[Q], A]) -> list[A]:
        if self.away:
            raise Unavailable("placement is away")
        self.asked.append(len(questions))
        answers = [answer(question) for question in questions]
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("the answer was lost")
        return answers


def in_short(effect: Message) -> str:
    """Return an effect of a build in short, for tables."""
    match effect:
        case BuildOrdered():
            return f"build {effect.attempt} at {effect.host}"
        case DestroyOrdered():
            above = f" above {effect.above}" if effect.above else ""
            return f"destroy {effect.attempt} at {effect.host}{above}"
        case ClaimRequested():
            (claim,) = effect.claims
            to = f"swap {claim.generation} to {len(claim.choices)}"
            if claim.take_over:
                to = f"back {claim.generation} to {_kept(claim.take_over, claim.consumer)}"
            return to + (f" keeping {_kept(claim.keep, claim.consumer)}" if claim.keep else "")
        case ReleaseRequested() if effect.generation != "any":
            retired = {"": "", "shelved": " as shelved"}.get(effect.retire, " for good")
            kept = f" keeping {_kept(effect.keep, effect.consumer)}" if effect.keep else ""
            return f"release {effect.generation}{retired}{kept}"
        case ReleaseRequested():
            return f"free {_kept(effect.consumer, uid(1, 'b'))}"
        case BuildEnded():
            return f"end {effect.status}"
        case BuildDeleted():
            return "deleted"
        case HostFailed():
            return f"{effect.host} failed: {effect.cause}{'' if effect.ours else ', not its fault'}"
        case _:
            return getattr(effect, "outcome", None) or type(effect).__name__


def _kept(consumer: str | None, build: str) -> int:
    return next(attempt for attempt in range(1, 20) if holder_consumer(build, attempt) == consumer)
