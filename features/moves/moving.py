"""Publishes move requests and awaits their results, asks what would become of moves, and confirms, reverts,
aborts or forces moves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec import structs

from berth.kit import (
    PUBLISH_SECONDS,
    BadSetting,
    Settings,
    added,
    builds_by_uuid,
    cells_text,
    check_host_names,
    check_to_cell,
    checked,
    each_message,
    host_named,
    publish,
)
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import UNANSWERED, OperationRefused, Unavailable, Unroutable
from bus.messages import Attempt
from bus.queries import BuildStands, FindWaiting, WaitingRequest
from bus.requests import BuildSpec, Flavor
from bus.resources import Provider
from bus.vocabulary import UNSAID_ID
from features.moves.messages import (
    FIND_MOVES,
    MOVE_ENDED,
    MOVE_PROGRESS,
    MOVE_REFUSED,
    FindMoves,
    MoveEnded,
    MoveProgress,
    MoveRefused,
    MoveRequested,
    MoveStands,
    MoveSteered,
    PhaseOver,
    Steering,
)
from features.moves.supposed_moves import DryRuns, SupposedMove

# Requests moves as a client, and returns the result of each move even if messages are lost.


POLL_SECONDS = 2.0  # between two reads of the cells' records of moves, in case a message was lost
AGAIN_SECONDS = 15.0  # time until a move is requested again that no cell knows and no scheduler refused
_MOVES_A_POLL = 500  # moves in one query

REFUSED = "refused"
VERIFYING = "verifying"  # the move waits for confirm or revert


@dataclass(frozen=True, kw_only=True)
class MoveOutcome:
    """The result of a move, from a message or from a cell's records."""

    move: str
    build: str
    end: str  # a MoveEnd, REFUSED or VERIFYING
    kind: str = ""
    host: str = ""
    reason: str = ""
    code: str = ""
    phases: tuple[PhaseOver, ...] = ()
    attempts: tuple[Attempt, ...] = ()


@dataclass
class _Open:
    """A move with a result that a client awaits, and the progress (`shown`) last reported to its listener."""

    cell: str
    asked: MoveRequested | None  # None: requested by another client
    since: float
    outcome: asyncio.Future[MoveOutcome]
    past_verifying: bool = False
    shown: tuple[str, str, int] = field(default=("", "", 0))


class MoveListener:
    """Base class of objects that receive the progress of moves; its methods do nothing."""

    def progress(self, progress: MoveProgress) -> None:
        """Receive the progress of a move."""

    def waits(self, waiting: WaitingRequest) -> None:
        """Receive the report that a move waits for capacity."""

    def on_outcome(self, outcome: MoveOutcome) -> None:
        """Receive the outcome of a move."""


class FollowedMoves:
    """Watches several moves at the same time, each until it has a result; reports progress to a listener."""

    def __init__(self, bus: Bus, name: str, listener: MoveListener) -> None:
        self.bus = bus
        self.reply_to = name
        self._listener = listener
        self._open: dict[str, _Open] = {}

    async def ask(self, request: MoveRequested) -> MoveOutcome:
        """Request a move, and return its result when it has ended or waits for confirmation."""
        outcome = self.join(request.move, request.cell, asked=request)
        try:
            await publish(self.bus, request, patience=PUBLISH_SECONDS)
        except (Unavailable, Unroutable):
            # Else it would be requested again. A move with a result was published in spite of the error.
            if self._open.pop(request.move, None) is not None:
                raise
        return await outcome

    def join(
        self, move: str, cell: str, *, past_verifying: bool = False, asked: MoveRequested | None = None
    ) -> asyncio.Future[MoveOutcome]:
        """Begin to follow a requested move, and return the future of its result. Without `past_verifying` a
        wait for confirmation is a result, too. `asked`: the request, if this client sent it.
        """
        outcome = asyncio.get_running_loop().create_future()
        since = self.bus.clock.monotonic()
        self._open[move] = _Open(cell, asked, since, outcome, past_verifying)
        return outcome

    def refused(self, refusal: MoveRefused) -> None:
        """Count a refused move as ended."""
        self._end(_outcome(refusal, end=REFUSED))

    def ended(self, move_ended: MoveEnded) -> None:
        """Count a move as ended."""
        self._end(_outcome(move_ended))

    def progress(self, progress: MoveProgress) -> None:
        """Pass progress of a followed move to the listener; a refusal to steer ends it."""
        followed = self._open.get(progress.move)
        if followed is None:
            return
        if progress.refused:
            self._listener.progress(progress)
            return
        now = (progress.phase, progress.host, progress.percent)
        if now != followed.shown:
            followed.shown = now
            self._listener.progress(progress)
        if progress.phase in ("verify", VERIFYING) and not followed.past_verifying:
            self._end(
                MoveOutcome(move=progress.move, build=progress.build, end=VERIFYING, host=progress.host)
            )

    def _end(self, outcome: MoveOutcome) -> None:
        followed = self._open.pop(outcome.move, None)
        if followed is not None and not followed.outcome.done():
            followed.outcome.set_result(outcome)

    async def poll(self) -> None:
        """Query the cells repeatedly for moves without a result, because messages may be lost."""
        wait = POLL_SECONDS / 8
        while True:
            await asyncio.sleep(wait)
            wait = min(2 * wait, POLL_SECONDS)
            cells: dict[str, list[str]] = {}
            for move, open in self._open.items():
                cells.setdefault(open.cell, []).append(move)
            for cell, moves in cells.items():
                await self._read_states(cell, moves[:_MOVES_A_POLL])

    async def _read_states(self, cell: str, moves: list[str]) -> None:
        found = await moves_of(self.bus, FindMoves(cell=cell, moves=tuple(moves), limit=_MOVES_A_POLL))
        if found is None:
            return  # the cell does not answer
        for stands in found:
            if stands.in_cell:  # the move's other cell reports the result
                if (followed := self._open.get(stands.move)) is not None:
                    followed.cell = stands.in_cell
            elif stands.ended:
                back = stands.phase in ("reverted", "aborted")
                host = stands.at or (stands.source if back else stands.host)  # older cells have no `at`
                self._end(_outcome(stands, end=stands.phase, host=host))
            elif stands.move in self._open:
                self.progress(
                    MoveProgress(
                        move=stands.move, build=stands.build, cell=cell, phase=stands.phase,
                        host=stands.towards, percent=stands.percent,
                    )
                )  # fmt: skip
        await self._ask_again({*moves} - {stands.move for stands in found})

    async def _ask_again(self, unknown: Collection[str]) -> None:
        """Repeat the requests of moves that no cell has a record of: such a move may have been refused and
        the message with the refusal lost, and the scheduler then refuses the move again.
        """
        now = self.bus.clock.monotonic()
        waiting = await self._that_wait(unknown)
        for move in sorted(unknown):
            followed = self._open.get(move)
            if followed is None or followed.asked is None or now - followed.since < AGAIN_SECONDS:
                continue
            if followed.asked.parts.waits.longest and (waiting is None or move in waiting):
                continue
            followed.since = now
            try:
                await self.bus.publish(followed.asked)
            except (Unavailable, Unroutable):
                return

    async def _that_wait(self, moves: Collection[str]) -> Collection[str] | None:
        """Return which of the moves wait for capacity, or None if no scheduler answers. Only moves that this
        client has requested, with permission to wait, are queried.
        """
        open_ = [self._open[move] for move in sorted(moves) if move in self._open]
        may = [open.asked.move for open in open_ if open.asked is not None and open.asked.parts.waits.longest]
        if not may:
            return ()
        found = await waiting_moves(self.bus, may)
        for request in found or ():
            self._listener.waits(request)
        return None if found is None else {request.request for request in found}


def _outcome(message: MoveRefused | MoveEnded | MoveStands, **changed: str) -> MoveOutcome:
    """Return a move's result, copied from a message or a cell's record; `changed` has values that replace
    the copied fields.
    """
    fields = {
        name: getattr(message, name) for name in MoveOutcome.__dataclass_fields__ if hasattr(message, name)
    }
    return MoveOutcome(**fields | changed)


async def moves_of(bus: Bus, question: FindMoves) -> tuple[MoveStands, ...] | None:
    """Query a cell for one page of its moves; return None if the cell does not answer."""
    try:
        return (await bus.asker(FIND_MOVES)(question)).moves
    except UNANSWERED:
        return None


async def waiting_moves(bus: Bus, ids: Collection[str]) -> tuple[WaitingRequest, ...] | None:
    """Return the moves that wait for capacity and have one of the given ids (of the move or of its build);
    None if no scheduler answers.
    """
    try:
        found = await bus.asker(topics.WAITING)(FindWaiting(requests=tuple(ids), limit=_MOVES_A_POLL))
    except UNANSWERED:
        return None
    return tuple(request for request in found.waiting if request.move)


@asynccontextmanager
async def following(bus: Bus, name: str, listener: MoveListener) -> AsyncIterator[FollowedMoves]:
    """Yield an object that watches moves in the `with` block.

    `name`: the reply address (`reply_to`) at which the client receives progress and results of its moves.
    """
    moves = FollowedMoves(bus, name, listener)
    refusals = await bus.listen(MOVE_REFUSED.at(reply_to=name))
    ends = await bus.listen(MOVE_ENDED.at(reply_to=name))
    progress = await bus.listen(MOVE_PROGRESS.at(reply_to=name))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(each_message(refusals, moves.refused)),
            group.create_task(each_message(ends, moves.ended)),
            group.create_task(each_message(progress, moves.progress)),
            group.create_task(moves.poll()),
        ]
        try:
            yield moves
        finally:
            for task in tasks:
                task.cancel()
            for subscription in (refusals, ends, progress):  # the bus may be used afterwards
                await subscription.stop()


ANY = UNSAID_ID  # placeholder for ids that each request gets
_LONGEST_NAME = 200

Making = Callable[[BuildStands], MoveRequested]  # returns the request for a build in its present state


def spec_of(stands: BuildStands) -> BuildSpec:
    """Return an instance's present flavor, image and properties, as its cell has recorded them."""
    return stands.spec or stands.placed.spec


async def prepare_moves(
    bus: Bus, settings: Settings, builds: Sequence[str], cell: str, making: Making, reply_to: str
) -> list[MoveRequested]:
    """Return a move request for each build: `making` makes the request from the cell's record of the build;
    ids, cells and `reply_to` are filled in here. Raise BadSetting if a destination cell is unknown, and
    OperationRefused if several hosts have the name of a destination.
    """
    found, clock = await builds_by_uuid(bus, settings, builds, cell), Clock()
    made = [(stands, making(stands)) for stands in found.values()]
    if made:
        first = made[0][1]
        await check_host_names(bus, (first.wanted_host, first.forced_host, *first.ignore_hosts))
    across = await _cell_of_host(bus, made[0][1]) if made else ""
    requests = []
    for stands, request in made:
        cell = stands.placed.cell
        to_cell = request.to_cell or (across if across != cell else "")
        ids = {"move": clock.uuid(), "build": stands.build, "cell": cell, "reply_to": reply_to}
        requests.append(checked(structs.replace(request, to_cell=to_cell, **ids)))
    for cell in {request.to_cell for _, request in made}:
        await check_to_cell(bus, settings, cell)
    return requests


async def _cell_of_host(bus: Bus, asked: MoveRequested) -> str:
    """Return the cell of the destination host that a move request names; "" if the request names no known
    host, already names a cell, or is of a type without a destination.
    """
    name = asked.wanted_host or asked.forced_host
    if not name or asked.to_cell or asked.kind not in ("migrate", "resize", "unshelve"):
        return ""
    try:
        return (await host_named(bus, name)).cell
    except (OperationRefused, Unavailable, Unroutable):
        return ""  # the scheduler reports the error


async def follow_moves(
    bus: Bus, name: str, requests: Sequence[MoveRequested], timeout: float, listener: MoveListener
) -> bool:
    """Publish move requests with the reply address `name` and await all results; return True if each move is
    done or waits for confirmation. Raise OperationRefused after `timeout` seconds.
    """
    open_ = {request.move for request in requests}
    good = 0

    async def follow(moves: FollowedMoves, request: MoveRequested) -> None:
        nonlocal good
        outcome = await moves.ask(request)
        open_.remove(request.move)
        good += outcome.end in ("done", VERIFYING)
        listener.on_outcome(outcome)

    try:
        async with asyncio.timeout(timeout), following(bus, name, listener) as moves:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    group.create_task(follow(moves, request))
    except TimeoutError:
        raise OperationRefused(
            f"not followed any longer, and under way after {timeout:g} s: {', '.join(sorted(open_))}"
        ) from None
    return good == len(requests)


async def supposed(
    bus: Bus, moves: Sequence[MoveRequested], closed: Sequence[Provider] = ()
) -> list[SupposedMove]:
    """Return for each move what would become of it now (`DryRuns`); raise BadSetting if no feature evaluates
    moves. No move may go to a host in `closed`.
    """
    for dry_runs in added(DryRuns, "dry_runs"):
        return list(await dry_runs.supposed(bus, moves, closed))
    raise BadSetting("--dry-run: no feature of this berth evaluates moves")


def flavor_changed(
    flavor: Flavor, name: str, sizes: Mapping[str, int | None], specs: Mapping[str, str]
) -> Flavor:
    """Return a copy of a flavor with the given sizes (None: unchanged) and extra specs ("": no such extra
    spec). If `name` is empty, the copy's name lists the changes.
    """
    given = {key: value for key, value in sizes.items() if value is not None}
    for key, value in specs.items():
        if not value and key not in flavor.extra_specs:
            raise BadSetting(f"--extra-spec {key}=: the flavor has no such extra spec to take away")
    extra = {key: value for key, value in {**flavor.extra_specs, **specs}.items() if value}
    changed = structs.replace(flavor, extra_specs=extra, **given)
    if name or changed == flavor:
        return structs.replace(changed, name=name or flavor.name)
    differs = [f"{key}={value}" for key, value in given.items() if getattr(flavor, key) != value]
    differs += [f"{key}={value}" for key, value in specs.items() if flavor.extra_specs.get(key, "") != value]
    base = flavor.name.partition(" with ")[0]
    return structs.replace(changed, name=f"{base} with {','.join(differs)}"[:_LONGEST_NAME])


ANSWER_SECONDS = 5.0  # time limit for a cell to accept or refuse


async def move_in_progress(bus: Bus, cells: Sequence[str], id_: str) -> MoveStands:
    """Return the move in progress with this id or of the build with this id, or raise OperationRefused."""
    ended_move: MoveStands | None = None
    elsewhere: MoveStands | None = None
    silent = []
    for cell in cells:
        for question in (
            FindMoves(cell=cell, moves=(id_,)),
            FindMoves(cell=cell, builds=(id_,), under_way=True),
            FindMoves(cell=cell, builds=(id_,), limit=1),
        ):
            found = await moves_of(bus, question)
            if found is None:
                silent.append(cell)
                break
            for move in found:
                if move.in_cell:
                    elsewhere = move
                elif not move.ended:
                    return move
                else:
                    ended_move = move
    if elsewhere is not None and (ended_move is None or ended_move.move != elsewhere.move):
        raise OperationRefused(
            f"move {elsewhere.move} of {elsewhere.build} is on its way to cell {elsewhere.in_cell}:"
            " say it again when it is there"
        )
    if ended_move is not None:
        raise OperationRefused(f"move {ended_move.move} of {ended_move.build} is over: {ended_move.phase}")
    no_answer = f"; did not answer: {cells_text(silent)}" if silent else ""
    raise OperationRefused(f"{id_}: no move of it is under way{no_answer}")


@asynccontextmanager
async def steering(
    bus: Bus, stands: MoveStands, to: Steering, listener: MoveListener
) -> AsyncIterator[tuple[asyncio.Future[MoveOutcome], asyncio.Future[MoveProgress]]]:
    """Send an operator's request `to` (confirm, revert, abort, force) to a move's cell; yield the futures of
    the move's result and of the cell's first reply.
    """
    name = f"steer-{Clock().uuid()[:8]}"
    order = MoveSteered(move=stands.move, build=stands.build, cell=stands.cell, to=to, reply_to=name)
    answer: asyncio.Future[MoveProgress] = asyncio.get_running_loop().create_future()
    async with following(bus, name, _FirstAnswer(answer, listener)) as moves:
        outcome = moves.join(stands.move, stands.cell, past_verifying=True)
        await publish(bus, checked(order), patience=PUBLISH_SECONDS)
        await asyncio.wait((outcome, answer), timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        yield outcome, answer


class _FirstAnswer(MoveListener):
    """Sets the future `answer` to the cell's first progress message, and passes all progress except refusals
    to `listener`.
    """

    def __init__(self, answer: "asyncio.Future[MoveProgress]", listener: MoveListener) -> None:
        self._answer = answer
        self._listener = listener

    def progress(self, progress: MoveProgress) -> None:
        if progress.reply_to and not self._answer.done():  # progress that was read has no reply_to
            self._answer.set_result(progress)
        if not progress.refused:
            self._listener.progress(progress)

    def waits(self, waiting: WaitingRequest) -> None:
        self._listener.waits(waiting)
