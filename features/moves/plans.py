"""Carries out plans of many moves: drains, evacuations, and the plans of other features.

A plan and its moves are rows in the database of the schedulers. One scheduler at a time leads this work. In
each step it reads the results of the moves in progress, lets the kind of the plan decide what follows, stores
that, and only then requests the new moves. The id of a move follows from its plan, so a request that is
published again, also by another scheduler, moves nothing twice. A plan is changed only if no other scheduler
has changed it since it was read.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec
from msgspec import structs

from bus import parts
from bus.candidates import CandidateSource
from bus.clock import Clock, set_within
from bus.errors import UNANSWERED, Retry, Unavailable
from bus.parts import Part
from bus.protocol import Ask
from bus.sql.database import Database
from bus.sql.statement import Transaction, sql
from bus.vocabulary import Id, cause_of, portions
from bus.worker import WorkerRows, answers, on
from features.moves.core.plan_moves import MovesOfPlan, StoredMove, refused, result_of, unended
from features.moves.messages import (
    FIND_PLANS,
    MOVE_ENDED,
    MOVE_REFUSED,
    PLANS,
    START_PLAN,
    STOP_PLAN,
    FindMoves,
    FindPlans,
    MoveEnded,
    MoveOfPlan,
    MoveRefused,
    MoveRequested,
    MovesFound,
    MoveStands,
    PlanOfMoves,
    PlansFound,
    PlanStands,
    PlanStarted,
    PlanStopAnswered,
    StartPlan,
    StopPlan,
)
from scheduler_worker.extension import Lead, Publish

WORK = "plans of moves"
STEP_SECONDS = 2.0
LEAD_SECONDS = 6.0  # after which another scheduler leads if the leader is silent: three steps
AGAIN_SECONDS = 15.0  # after which a move of which no cell or scheduler has a record is requested again
LONGEST_AGAIN = 600.0  # between two such requests; the time doubles with each
MOVES_ASKED = 500  # in one query to a cell
MOVES_SHOWN = 500  # in one answer, or a few more

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredPlan:
    """A plan as it is stored. `memo`: what its kind has noted about it."""

    stands: PlanStands
    memo: dict[str, Any]
    moves: MovesOfPlan


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """The next step of a plan: moves to request, and the changes of its record."""

    new: Sequence[StoredMove] = ()
    counts: Mapping[str, Any] = field(default_factory=dict)  # further fields of PlanStands
    memo: dict[str, Any] = field(default_factory=dict)
    goal: Part | None = None  # in place of the part of the plan
    forgotten: Collection[Id] = ()  # ended moves that the plan needs no more
    over: bool = False
    code: str = ""
    why: str = ""


class PlanKind(Protocol):
    """Decides about plans with a certain goal."""

    def carries_out(self, plan: PlanOfMoves) -> bool:
        """Return whether the plan has the goal of this kind."""

    def same(self, plan: PlanOfMoves, other: PlanOfMoves) -> bool:
        """Return whether a running plan does what another plan is to do, so that the other is not started."""

    async def step(self, stands: PlanStands, memo: dict[str, Any], moves: MovesOfPlan) -> PlanStep:
        """Return what follows now. The step may be repeated, and may be discarded."""

    def forget(self, plans: Collection[Id]) -> None:
        """Drop what is known of all plans except the given ones."""


class MovePlans:
    """Stores plans of moves, answers queries about them, and carries them out."""

    def __init__(
        self,
        database: Database,
        find_moves: Ask[FindMoves, MovesFound],
        source: CandidateSource,
        clock: Clock,
        publish: Publish,
    ) -> None:
        self._database = database
        self._find_moves = find_moves
        self._source = source
        self._clock = clock
        self._publish = publish
        self._kinds: list[PlanKind] = []
        self._lead = Lead(database, WORK, LEAD_SECONDS, clock)
        self._wake = asyncio.Event()
        self._repeats: dict[Id, tuple[float, float]] = {}  # move → next repetition, pause before it

    def add_kind(self, kind: PlanKind) -> None:
        """Register a kind of plans, by which another feature chooses the moves."""
        self._kinds.append(kind)

    def rows(self) -> WorkerRows:
        """Return the rows for the scheduler's table: results of moves, queries, and the timer of plans."""
        return WorkerRows(
            consumes=[
                on(MOVE_ENDED.at(reply_to=PLANS), self.on_result, private=True),
                on(MOVE_REFUSED.at(reply_to=PLANS), self.on_result, private=True),
            ],
            answers=[
                answers(START_PLAN, self.start),
                answers(STOP_PLAN, self.stop),
                answers(FIND_PLANS, self.find),
            ],
            runs=[self.run],
            stops=[self._lead.resign],
            announces=frozenset({MoveRequested}),
        )

    # Queries

    async def start(self, asked: StartPlan) -> PlanStarted:
        """Store a new plan and begin it; refuse one whose goal no feature carries out."""
        plan = asked.plan
        kind = self._kind_of(plan)
        if kind is None:
            return PlanStarted(refused="a plan needs exactly one goal, of a feature that carries it out")
        async with self._database.write() as tx:
            if not await _plans(tx, ids=(plan.id,)):
                for other in await _plans(tx, open_=True):
                    running = other.stands.plan
                    is_alike = self._kind_of(running) is kind and not other.stands.stopping
                    if is_alike and (kind.same(running, plan)):
                        changed = structs.replace(running, most=plan.most)
                        await _put(tx, other, structs.replace(other.stands, plan=changed), other.memo)
                        return PlanStarted(plan=running.id)
                await _add(tx, PlanStands(plan=plan, began=self._clock.now()))
        self._wake.set()
        return PlanStarted(plan=plan.id)

    async def stop(self, asked: StopPlan) -> PlanStopAnswered:
        """Let a plan begin no further move; those in progress end as usual."""
        stopped = await self._change(asked.plan, lambda stands: structs.replace(stands, stopping=True))
        return PlanStopAnswered(stopped=stopped)

    async def set(self, plan: PlanOfMoves) -> None:
        """Start a plan, or give a plan that goes on another goal."""
        async with self._database.write() as tx:
            await _add(tx, PlanStands(plan=plan, began=self._clock.now()))
        await self._change(plan.id, lambda stands: structs.replace(stands, plan=plan))

    async def find(self, asked: FindPlans) -> PlansFound:
        """Return the plans that match a query."""
        async with self._database.read() as tx:
            found = await _plans(
                tx, ids=asked.plans, root=asked.root, open_=not asked.plans, most=asked.limit
            )
            stands = [each.stands for each in found]
            if len(stands) == 1 and asked.moves_after is not None:
                moves, version = await _changed_moves(tx, stands[0].plan.id, asked.moves_after)
                stands = [structs.replace(stands[0], moves=moves, version=version or stands[0].version)]
        return PlansFound(plans=tuple(stands))

    async def running(self) -> list[PlanStands]:
        """Return all plans that go on."""
        async with self._database.read() as tx:
            return [each.stands for each in await _plans(tx, open_=True)]

    async def stored(self, plan: Id) -> StoredPlan | None:
        """Return a plan with all of its moves; None if it does not exist."""
        async with self._database.read() as tx:
            return next(iter(await _plans(tx, ids=(plan,), with_moves=True)), None)

    async def moves_of(self, *, plans: Collection[Id] = (), build: Id = "") -> list[StoredMove]:
        """Return the moves of the given plans, or of one instance, the oldest first."""
        async with self._database.read() as tx:
            return await _moves(tx, plans, build)

    async def durations(self, most: int) -> list[tuple[int, float]]:
        """Return the memory of the last instances that moved from running hosts, each with the seconds that
        its move took.
        """
        async with self._database.read() as tx:
            rows = await _DURATIONS(tx, most=most)
        return [(row["memory_mb"], row["ended"] - row["at"]) for row in rows]

    # The work of the leader

    async def run(self) -> None:
        """Carry out plans until this scheduler stops."""
        while True:
            try:
                await self.step()
            except UNANSWERED as problem:
                log.warning("plans of moves: %s", problem)
            except Exception:
                log.exception("a step of the plans of moves has failed")
            await set_within(self._wake, STEP_SECONDS)
            self._wake.clear()

    async def on_result(self, result: MoveEnded | MoveRefused) -> None:
        """Let the next step begin now, because a move of a plan has ended."""
        self.wake()

    def wake(self) -> None:
        """Let the next step begin now."""
        self._wake.set()

    async def prune(self, keep: float) -> None:
        """Delete the plans that ended more than `keep` seconds ago, with their moves."""
        async with self._database.write() as tx:
            for statement in (_PRUNE_MOVES, _PRUNE_HOSTS, _PRUNE):
                await statement(tx, before=self._clock.now() - keep)

    async def step(self) -> None:
        """If this scheduler leads, carry all plans on, and publish the requests for their moves."""
        async with self._database.read() as tx:
            ids = [each.stands.plan.id for each in await _plans(tx, open_=True)]
        for kind in self._kinds:
            kind.forget(ids)
        if not ids:
            self._repeats.clear()
        if not ids or not await self._lead.renew():
            return
        await self._source.fresh()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._carry_on(id_)) for id_ in ids]
        requests = [request for task in tasks for request in task.result()]
        if requests:
            await self._publish(*requests)

    async def _carry_on(self, id_: Id) -> Sequence[MoveRequested]:
        """Carry a plan on; return the moves to request now. If a worker does not answer, the plan says so."""
        try:
            plan = await self.stored(id_)
            return () if plan is None or plan.stands.ended else await self._step_of(plan)
        except (*UNANSWERED, Retry) as problem:
            log.warning("plan of moves %s: %s", id_, problem)
            why = cause_of(str(problem))
            with suppress(Unavailable):
                await self._change(id_, lambda stands: structs.replace(stands, why=why))
        except Exception:
            log.exception("plan of moves %s: a step has failed", id_)
        return ()

    async def _step_of(self, plan: StoredPlan) -> Sequence[MoveRequested]:
        kind = self._kind_of(plan.stands.plan)
        if kind is None:  # its feature was deleted
            return ()
        ended, again = await self._results(plan.moves)
        moves = plan.moves.with_results(ended)
        step = await kind.step(plan.stands, plan.memo, moves)
        goal = plan.stands.plan
        new = [_completed(each, goal) for each in step.new]
        if step.goal is not None:
            goal = structs.replace(goal, parts=goal.parts.having(step.goal))
        after = structs.replace(
            plan.stands,
            plan=goal,
            ended=self._clock.now() if step.over else 0.0,
            code=step.code,
            why=cause_of(step.why),
            under_way=len(moves.in_progress) + len(new),
            **step.counts,
        )
        if ended or new or step.forgotten or after != plan.stands or step.memo != plan.memo:
            async with self._database.write() as tx:
                version = await _put(tx, plan, after, step.memo)
                if not version:
                    self._wake.set()  # it was changed since it was read: decide again
                    return ()
                await _end(tx, ended.values(), version)
                await _add_moves(tx, new, version)
                if step.forgotten:
                    await _DROP_MOVES(tx, [(move,) for move in sorted(step.forgotten)])
        if step.over:
            log.info("plan of moves %s has ended: %s", goal.id, step.code or "done")
        return [*again, *(each.request for each in new)]

    async def _results(self, moves: MovesOfPlan) -> tuple[dict[Id, MoveOfPlan], list[MoveRequested]]:
        """Return the moves that have ended, by id, and the requests to publish again."""
        now, open_ = self._clock.now(), {each.move.move: each for each in moves.stored if not each.move.ended}
        stands = await self._recorded(moves)
        async with self._database.read() as tx:
            refusals = await _refusals(tx, open_.keys() - stands.keys())
        ended, again = {}, []
        for id_, each in open_.items():
            if id_ in stands:
                if (move := result_of(each.move, stands[id_])) is not each.move:
                    ended[id_] = move
            elif id_ in refusals:
                ended[id_] = refused(each.move, *refusals[id_], now)
            elif self._is_due(id_, each.move.at, now):
                again.append(each.request)
        for id_ in ended:
            self._repeats.pop(id_, None)
        return ended, again

    def _is_due(self, move: Id, requested: float, now: float) -> bool:
        """Return whether a move without a record is to be requested again now."""
        at, pause = self._repeats.get(move, (requested + AGAIN_SECONDS, AGAIN_SECONDS))
        if now < at:
            return False
        self._repeats[move] = now + 2 * pause, min(2 * pause, LONGEST_AGAIN)
        return True

    async def _recorded(self, moves: MovesOfPlan) -> dict[Id, MoveStands]:
        """Return the records of the moves that had not ended. A move to another cell is read there when its
        first cell has handed it over.
        """
        found: dict[Id, MoveStands] = {}
        asked = unended(moves.stored)
        while asked:
            elsewhere: dict[str, list[Id]] = {}
            for cell, ids in sorted(asked.items()):
                for some in portions(ids, MOVES_ASKED):
                    question = FindMoves(cell=cell, moves=some, limit=len(some))
                    for stands in (await self._find_moves(question)).moves:
                        if stands.in_cell and stands.move not in found:
                            elsewhere.setdefault(stands.in_cell, []).append(stands.move)
                        found[stands.move] = stands
            asked = elsewhere
        return found

    def _kind_of(self, plan: PlanOfMoves) -> PlanKind | None:
        kinds = [kind for kind in self._kinds if kind.carries_out(plan)]
        return kinds[0] if len(kinds) == 1 and len(plan.parts) == 1 else None

    async def _change(self, plan: Id, change: Callable[[PlanStands], PlanStands]) -> bool:
        """Change the record of a plan that goes on; return False if there is none."""
        while True:
            async with self._database.write() as tx:
                found = await _plans(tx, ids=(plan,))
                if not found or found[0].stands.ended:
                    return False
                after = change(found[0].stands)
                if after == found[0].stands or await _put(tx, found[0], after, found[0].memo):
                    break
        self._wake.set()
        return True


def _completed(new: StoredMove, plan: PlanOfMoves) -> StoredMove:
    """Return a new move with what all requests of its plan have in common."""
    request = new.request
    names = {"plan": request.plan or plan.plan, "note": request.note or plan.note, "reply_to": PLANS}
    return replace(new, request=structs.replace(request, **names))


# The SQL of plans


_encode = parts.stored_encoder().encode
_stands = parts.stored_decoder(PlanStands).decode
_request = parts.stored_decoder(MoveRequested).decode


class _Code(msgspec.Struct):
    code: str = ""


_code = msgspec.json.Decoder(_Code).decode


async def _add(tx: Transaction, stands: PlanStands) -> None:
    roots = StartPlan(plan=stands.plan).roots
    if await _ADD(tx, [(stands.plan.id, stands.began, _encode(stands).decode())]) and roots:
        await _ADD_ROOTS(tx, [(stands.plan.id, root) for root in roots])


async def _put(tx: Transaction, plan: StoredPlan, after: PlanStands, memo: dict[str, Any]) -> int:
    """Store the new state of a plan. Return its version; 0 if the plan was changed since it was read."""
    version = plan.stands.version + 1
    record = _encode(structs.replace(after, version=version)).decode()
    changed = await _PUT(
        tx,
        id=after.plan.id,
        version=version,
        was=plan.stands.version,
        ended=after.ended,
        record=record,
        memo=_encode(memo).decode(),
    )
    if changed:
        roots = StartPlan(plan=after.plan).roots
        if roots != StartPlan(plan=plan.stands.plan).roots:
            await _DROP_ROOTS(tx, id=after.plan.id)
            await _ADD_ROOTS(tx, [(after.plan.id, root) for root in roots])
    return version if changed else 0


async def _plans(
    tx: Transaction,
    *,
    ids: Collection[Id] = (),
    root: str = "",
    open_: bool = False,
    most: int = 100_000,
    with_moves: bool = False,
) -> list[StoredPlan]:
    """Return plans, the newest first: with these ids, of a host, or all that go on."""
    if root:
        rows = await _OF_ROOT(tx, root=root, most=most)
    elif ids:
        rows = await _OF_IDS(tx, [(id_,) for id_ in sorted(ids)])
    else:
        rows = await _OPEN(tx, most=most)
    found = []
    for row in rows:
        stands = _stands(row["record"])
        moves = await _moves(tx, (stands.plan.id,)) if with_moves else ()
        memo = msgspec.json.decode(row["memo"]) or {}
        found.append(StoredPlan(stands, memo, MovesOfPlan(tuple(moves))))
    return found


async def _moves(tx: Transaction, plans: Collection[Id], build: Id = "") -> list[StoredMove]:
    rows = await _MOVES(tx, [(id_,) for id_ in sorted({*plans, ""})], build=build)
    return [StoredMove(_move(row), _request(row["request"]), row["memory_mb"]) for row in rows]


def _move(row: Any) -> MoveOfPlan:
    return MoveOfPlan(**{name: row[name] for name in MoveOfPlan.__struct_fields__})


async def _changed_moves(tx: Transaction, plan: Id, after: int) -> tuple[tuple[MoveOfPlan, ...], int]:
    """Return the moves of a plan that changed after a version, about MOVES_SHOWN at most, and the version
    that these show; 0 if they show the present version.
    """
    rows = await _CHANGED(tx, plan=plan, after=after)
    if len(rows) <= MOVES_SHOWN:
        return tuple(map(_move, rows)), 0
    last = rows[MOVES_SHOWN]["changed"]
    return tuple([_move(row) for row in rows if row["changed"] <= last]), last


async def _add_moves(tx: Transaction, moves: Iterable[StoredMove], version: int) -> None:
    rows = [
        (each.move.move, each.move.build, each.move.plan, each.move.root, each.request.kind, each.move.at,
         version, each.memory_mb, _encode(each.request).decode())
        for each in moves
    ]  # fmt: skip
    if rows:
        await _ADD_MOVES(tx, rows)


async def _end(tx: Transaction, ended: Iterable[MoveOfPlan], version: int) -> None:
    rows = [(move.move, move.ended, move.result, move.code, move.host) for move in ended]
    if rows:
        await _END(tx, sorted(rows), version=version)


async def _refusals(tx: Transaction, moves: Collection[Id]) -> dict[Id, tuple[str, str]]:
    """Return why schedulers refused moves: a code, and a sentence."""
    rows = await _REFUSALS(tx, [(move,) for move in sorted(moves)]) if moves else []
    return {row["id"]: (_code(row["decision"]).code, row["reason"]) for row in rows}


_ADD = sql("""
    INSERT INTO move_plans (id, began, ended, version, record, memo)
    SELECT n.id, n.began, 0, 0, n.record, 'null' FROM {n: id str, began float, record str} WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id
""")
_ADD_ROOTS = sql("""
    INSERT INTO move_plan_hosts (plan, root) SELECT n.plan, n.root FROM {n: plan str, root str} WHERE true
    ON CONFLICT (plan, root) DO NOTHING RETURNING root
""")
_DROP_ROOTS = sql("DELETE FROM move_plan_hosts WHERE plan = :id RETURNING root")
_PUT = sql("""
    UPDATE move_plans SET version = :version, ended = CAST(:ended AS double precision), record = :record,
    memo = :memo WHERE id = :id AND version = :was AND ended = 0 RETURNING id
""")
_OPEN = sql("""
    SELECT record, memo FROM move_plans WHERE ended = 0 ORDER BY began DESC, id LIMIT :most
""")
_OF_IDS = sql("SELECT record, memo FROM move_plans WHERE id IN (SELECT n.id FROM {n: id str}) ORDER BY id")
_OF_ROOT = sql("""
    SELECT record, memo FROM move_plans WHERE id IN (SELECT plan FROM move_plan_hosts WHERE root = :root)
    ORDER BY began DESC, id LIMIT :most
""")
_COLUMNS = "move, build, plan, root, at, ended, result, code, host"
_MOVES = sql(f"""
    SELECT {_COLUMNS}, memory_mb, request FROM planned_moves
    WHERE build = :build OR plan IN (SELECT n.plan FROM {{n: plan str}}) ORDER BY at, changed, move
""")
_CHANGED = sql(f"""
    SELECT {_COLUMNS}, changed FROM planned_moves WHERE plan = :plan AND changed > :after
    ORDER BY changed, move
""")
_ADD_MOVES = sql("""
    INSERT INTO planned_moves
    (move, build, plan, root, kind, at, ended, changed, memory_mb, result, code, host, request)
    SELECT n.move, n.build, n.plan, n.root, n.kind, n.at, 0, n.changed, n.memory_mb, '', '', '', n.request
    FROM {n: move str, build str, plan str, root str, kind str, at float, changed int, memory_mb int,
    request str} WHERE true ON CONFLICT (move) DO NOTHING RETURNING move
""")
_END = sql("""
    UPDATE planned_moves SET ended = n.ended, result = n.result, code = n.code, host = n.host,
    changed = :version FROM {n: move str, ended float, result str, code str, host str}
    WHERE planned_moves.move = n.move RETURNING planned_moves.move
""")
_DURATIONS = sql("""
    SELECT memory_mb, at, ended FROM planned_moves WHERE result = 'done' AND kind <> 'evacuate'
    ORDER BY ended DESC LIMIT :most
""")
_REFUSALS = sql("""
    SELECT id, reason, decision FROM decisions WHERE parts <> '' AND id IN (SELECT n.id FROM {n: id str})
""")
_DROP_MOVES = sql("""
    DELETE FROM planned_moves WHERE move IN (SELECT n.move FROM {n: move str}) RETURNING move
""")
_PRUNE_MOVES = sql("""
    DELETE FROM planned_moves WHERE plan IN (SELECT id FROM move_plans WHERE 0 < ended AND ended < :before)
    RETURNING move
""")
_PRUNE_HOSTS = sql("""
    DELETE FROM move_plan_hosts WHERE plan IN (SELECT id FROM move_plans WHERE 0 < ended AND ended < :before)
    RETURNING plan
""")
_PRUNE = sql("DELETE FROM move_plans WHERE 0 < ended AND ended < :before RETURNING id")
