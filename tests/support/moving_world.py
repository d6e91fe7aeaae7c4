"""One build that moves, its agents and a placement that keeps books, without a bus: any order of events."""

import random
from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from bus.claims import ClaimRequested, ReleaseRequested, holder_consumer
from bus.messages import AgentReported, BuildDeleted, BuildEnded, BuildOrdered, DestroyOrdered, HostFailed
from bus.moves import MoveEnded, MoveKind, MoveOrdered, MovePlaced, MoveProgress, MoveReported, Steering
from bus.vocabulary import Message
from cell_conductor.core.build import Build
from cell_conductor.core.build import overdue as build_overdue
from cell_conductor.core.events import AttemptLimits, CleanedUp, Event, ReleaseAnswer, Stalled, SwapAnswered
from cell_conductor.core.phases import reminder
from cell_conductor.core.placed_move import postpone_reason
from cell_conductor.core.step import step
from tests.support.conductor_builders import (
    Books,
    a_build_order,
    a_delete,
    a_move,
    a_move_report,
    a_placed,
    a_selection,
    a_steering,
    an_agent_report,
)

LIMITS = AttemptLimits(max_attempts=3, build_timeout=100.0, delete_timeout=60.0, cleanup_timeout=1e9)
State = Literal["arriving", "running", "stopped"]
PLACED = a_placed(1, hosts=1)
SOURCE = PLACED.chosen.root


class MovingAgents:
    def __init__(self, chance: random.Random, faults: float) -> None:
        self.guests: dict[str, dict[int, State]] = {SOURCE: {1: "running"}}
        self.dead: set[str] = set()
        self._chance, self._faults = chance, faults
        self._said: dict[str, tuple[int, MoveReported | None]] = {}
        self._fates: dict[tuple[str, int], str] = {}  # of an attempt, below 0; or of a step
        self._void: dict[str, set[int]] = {}

    def running(self) -> list[tuple[str, int]]:
        return [
            (root, attempt)
            for root, there in self.guests.items()
            for attempt, state in there.items()
            if state == "running" and root not in self.dead
        ]

    def handle(self, order: Message) -> Iterator[Message]:
        assert isinstance(order, MoveOrdered | BuildOrdered | DestroyOrdered)
        there = self.guests.setdefault(order.root, {})
        void = self._void.setdefault(order.root, set())
        match order:
            case DestroyOrdered():
                meant = range(order.above + 1, order.attempt + 1)
                void.update(meant)
                for attempt in meant:
                    there.pop(attempt, None)
                yield an_agent_report(order, "destroyed")
            case BuildOrdered():
                if order.attempt in void:
                    yield an_agent_report(order, "destroyed")
                    return
                fate = self._fates.setdefault((order.root, -order.attempt), self._fate())
                if fate != "failed":
                    there[order.attempt] = "running"
                if fate == "left":
                    there[order.attempt] = "stopped"
                if fate != "silent" or self._chance.random() < 0.5:
                    said = an_agent_report(order, "failed" if fate in ("failed", "left") else "built")
                    yield replace(said, leftover=fate == "left")
            case MoveOrdered():
                known, before = self._said.get(order.root, (0, None))
                if order.step < known:
                    return
                if order.step > known or before is None:
                    before = self._do(order, there, void)
                    self._said[order.root] = order.step, before
                if before is not None:
                    yield before

    def _fate(self) -> str:
        return (
            self._chance.choice(["failed", "left", "silent"]) if self._chance.random() < self._faults else ""
        )

    def _do(self, order: MoveOrdered, there: dict[int, State], void: set[int]) -> MoveReported | None:
        again = (order.root, order.step) in self._fates
        fate = "" if again else self._fates.setdefault((order.root, order.step), self._fate())
        fails = fate in ("failed", "left")
        match order.phase:
            case "prepare":
                if order.attempt in void:
                    return a_move_report(order, "failed", cause="void")
                if fate != "failed":
                    there[order.attempt] = "arriving"
            case "send":
                if order.attempt not in there:
                    return a_move_report(order, "failed", cause="it is not there")
                there[order.attempt] = "running" if fails else "stopped"
            case "start":
                if there.get(order.attempt) not in ("arriving", "running"):
                    return a_move_report(order, "failed", cause="it is not there")
                if fate == "failed":
                    there.pop(order.attempt)
                elif not fails:
                    there[order.attempt] = "running"
            case "resume":
                guest = there.pop(order.was, None) or there.pop(order.attempt, None)
                if guest is None:
                    return a_move_report(order, "failed", cause="it is not there")
                there[order.was if fails else order.attempt] = "stopped" if fails else "running"
            case "rebuild":
                if order.was not in there and order.attempt not in there:
                    return a_move_report(order, "failed", cause="it is not there")
                if not fails:
                    there.pop(order.was, None)
                    there[order.attempt] = "running"
        if fate == "silent":
            return None
        return a_move_report(order, "failed" if fails else "done", leftover=fate == "left")


class MovingWorld:
    """Steps the build by whatever is on its way, in any order; each thing may come more than once."""

    def __init__(self, seed: int, kind: MoveKind, faults: float) -> None:
        self.chance = random.Random(seed)
        self.kind = kind
        self.now = 0.0
        self.placed_moves = 0
        self.agents = MovingAgents(self.chance, faults)
        self.books = Books(PLACED)
        self.ends: list[MoveEnded] = []
        self.deleted = False
        self.build: Build | None = None
        for event in (PLACED, an_agent_report(a_build_order(PLACED), "built")):
            self.build, _ = step(self.build, event, 0.0, LIMITS)
        self.waiting: list[Event | Message] = []

    @property
    def known(self) -> Build:
        assert self.build is not None
        return self.build

    def place(self, **what: object) -> MovePlaced:
        """The scheduler's claim, as the build stands."""
        build, kind = self.known, self.kind
        self.placed_moves += 1
        self.ends = []
        here = a_selection(0).root if build.status == "shelved" else build.host.root
        others = [number for number in (0, 5, 6, 7) if a_selection(number).root != here]
        there = [number for number in (0, 5, 6, 7) if a_selection(number).root == here]
        hosts = tuple(there if kind == "rebuild" else others[: self.chance.randint(1, 3)])
        generation = build.generation
        self.books.full = {a_selection(n).root for n in hosts[1:] if self.chance.random() < 0.2}
        if kind not in ("shelve", "rebuild"):
            keep = None if kind == "unshelve" else holder_consumer(build.id, build.attempt)
            generation = self.books.begin(build.id, a_selection(hosts[0]).choice.allocations, keep)
        if kind == "evacuate":
            self.agents.dead.add(here)
            self.agents.guests[here] = {build.attempt: "stopped"}
        number = self.placed_moves
        placed = a_move(kind, number=number, hosts=hosts, attempt=build.attempt, **what)  # type: ignore[arg-type]
        placed = replace(placed, generation=generation)
        self.waiting.append(placed)
        return placed

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.waiting and not self._remind():
                return
            self._take(self.waiting.pop(self.chance.randrange(len(self.waiting))))
            self.check()
        raise AssertionError(f"it does not end: {self.known}")

    def _remind(self) -> bool:
        build = self.known
        settled = build.status in ("active", "shelved", "deleted", "verifying")
        if settled and not build.leftovers:
            return False
        self.agents.dead.clear()
        self.now += 61.0
        if not settled:
            self._take(Stalled())
            build = self.known
        self.waiting.append(reminder(build) if build.moving is not None else build_overdue(build))
        return True

    def _take(self, event: Event | Message) -> None:
        chance = self.chance
        if isinstance(event, MoveOrdered | BuildOrdered | DestroyOrdered):
            if event.root in self.agents.dead:
                self.waiting.append(event)
                if all(getattr(one, "root", "") in self.agents.dead for one in self.waiting):
                    self.agents.dead.clear()
                return
            self.waiting += self.agents.handle(event)
            return
        if isinstance(event, MovePlaced) and postpone_reason(self.build, event):
            self.waiting.append(event)
            return
        if chance.random() < 0.2 and len(self.waiting) < 40:
            self.waiting.append(event)  # it comes once more, some time
        if chance.random() < 0.1:
            self.now += 30.0
        said = self._advance(event)  # type: ignore[arg-type]
        if said is None or chance.random() < 0.1:  # no answer, or we crash before we speak
            self.waiting.append(event)
            return
        for message in said:
            match message:
                case MoveEnded():
                    if message.move == a_move(number=self.placed_moves).move:
                        self.ends.append(message)
                case BuildDeleted():
                    self.deleted = True
                case MoveProgress() | BuildEnded() | HostFailed():
                    pass
                case _:
                    self.waiting.append(message)

    def _advance(self, event: Event) -> list[Message] | None:
        said: list[Message] = []
        for _ in range(6):
            self.build, effects = step(self.build, event, self.now, LIMITS)
            question = None
            for effect in effects:
                if isinstance(effect, ClaimRequested | ReleaseRequested):
                    assert question is None, "two questions at once"
                    question = effect
                else:
                    said.append(effect)
            if question is None:
                return said
            away, lost = self.chance.random() < 0.1, self.chance.random() < 0.1
            if away:
                return None
            move = self.known.moving
            phase = move.phase if move is not None else ""
            if isinstance(question, ClaimRequested):
                result = self.books._claim(question.claims[0])
                event = SwapAnswered(self.known.attempt, result, phase)
            else:
                freed = self.books._release(question)
                own = question.consumer == self.known.id
                event = (
                    ReleaseAnswer(self.known.status, freed) if own else CleanedUp(question.consumer, freed)
                )
            if lost:
                return None
        return None

    # What has to be so at every moment

    def check(self) -> None:
        build = self.known
        running = self.agents.running()
        abandoned = {(build.hosts[left.at].root, left.attempt) for left in build.leftovers if not left.gone}
        if self.kind in ("evacuate", "unshelve"):
            running = [one for one in running if one not in abandoned]
        assert len(running) <= 1, f"two run: {running}"
        held = [root for _, allocations in self.books.held.values() for root in allocations]
        assert len(held) == len(set(held)), f"held twice: {self.books.held}"
        there = {root for root, guests in self.agents.guests.items() if guests}
        assert there <= set(held), f"a guest without room: {there} {self.books.held}"

    def check_the_end(self) -> None:
        build = self.known
        assert build.moving is None or build.status == "verifying", build.move
        expected = {}
        if build.status in ("active", "verifying"):
            expected[build.id] = build.host.choice.allocations
        if build.moving is not None:
            kept = holder_consumer(build.id, build.moving.placed.attempt)
            expected[kept] = build.hosts[build.moving.source].choice.allocations
        assert {one: held for one, (_, held) in self.books.held.items()} == expected
        if build.status == "active":
            assert self.books.held[build.id][0] == build.generation
        there = {root: set(guests) for root, guests in self.agents.guests.items() if guests}
        if build.status in ("shelved", "deleted"):
            assert not there
        elif build.moving is None:
            assert set(there) <= {build.host.root}
        assert build.moving is not None or self.ends, "its end was never said"
        assert all(end == self.ends[0] for end in self.ends)


def an_old_report(build: Build) -> AgentReported:
    """Its agent has begun anew, and the order by which the guest is there has come again."""
    return replace(build_overdue(build), outcome="built")


def a_deletion() -> Message:
    return a_delete(PLACED)


def steerings(placed: MovePlaced, *to: Steering) -> list[Message]:
    return [a_steering(placed, literal) for literal in to]
