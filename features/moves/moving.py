"""Publishes move requests and awaits their results, asks what would become of moves, and confirms, reverts,
aborts or forces moves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec import structs

from berth.features import modules
from berth.operations.cells import builds_by_uuid, check_to_cell, named
from berth.operations.host_states import host_named
from berth.operations.publishing import PATIENCE, checked, publish, within
from berth.settings import BadSetting, Settings
from bus import topics
from bus.clock import Clock
from bus.decisions import Decision
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.messages import BuildCancelled, BuildCancelRequested
from bus.queries import BuildStands, WaitingRequest
from bus.requests import BuildSpec, Flavor
from bus.resources import Provider
from bus.vocabulary import UNSAID_ID
from features.moves.following import VERIFYING, FollowedMoves, MoveListener, MoveOutcome, following, moves_of
from features.moves.messages import FindMoves, MoveProgress, MoveRequested, MoveStands, MoveSteered, Steering

ANY = UNSAID_ID  # placeholder for ids that each request gets
AT_ONCE = 100  # supposed moves in one query; each is evaluated as if the earlier moves had been made
_LONGEST_NAME = 200

Making = Callable[[BuildStands], MoveRequested]  # returns the request for a build in its present state


def spec_of(stands: BuildStands) -> BuildSpec:
    """Return an instance's present flavor, image and properties, as its cell has recorded them."""
    return stands.spec or stands.placed.spec


async def prepare_moves(
    bus: Bus, settings: Settings, builds: Sequence[str], cell: str, making: Making, reply_to: str
) -> list[MoveRequested]:
    """Return a move request for each build: `making` makes the request from the cell's record of the build;
    ids, cells and `reply_to` are filled in here. Raise BadSetting if a destination cell is unknown.
    """
    found, clock = await builds_by_uuid(bus, settings, builds, cell), Clock()
    made = [(stands, making(stands)) for stands in found.values()]
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


class SupposedPlace(Protocol):
    """A host that a move would get."""

    @property
    def root(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def cell(self) -> str: ...


class SupposedMove(Protocol):
    """The answer to the question what would become of a move that was requested now."""

    @property
    def fits(self) -> bool: ...

    @property
    def refusal(self) -> str:
        """Return why the move would be refused before any host is searched; empty: it would not be."""

    @property
    def placed(self) -> Sequence[SupposedPlace]: ...

    @property
    def decision(self) -> Decision: ...


async def supposed(
    bus: Bus, moves: Sequence[MoveRequested], closed: Sequence[Provider] = ()
) -> list[SupposedMove]:
    """Return for each move what would become of it now, as the feature answers that has the module
    `dry_runs`; raise BadSetting without such a feature. Of AT_ONCE moves, each is evaluated as if the earlier
    moves were done. No move may go to a host in `closed`.
    """
    for module in modules("dry_runs"):
        answers: list[SupposedMove] = await module.supposed(bus, moves, closed)
        return answers
    raise BadSetting("--dry-run: no feature of this berth evaluates moves")


def why_not(answer: SupposedMove) -> str:
    """Return why an answer has no host for a move: a text with the reason code and a sentence."""
    code = f"[{answer.decision.code}] " if answer.decision.code else ""
    return f"{code}{answer.refusal or 'no host would do'}"


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


CANCEL_SECONDS = 30.0  # time limit for a scheduler to confirm a cancellation
ANSWER_SECONDS = 5.0  # time limit for a cell to accept or refuse


async def end_wait(bus: Bus, request: str) -> BuildCancelled:
    """Cancel a move (`request` is its id) that waits for capacity; return the scheduler's reply. A move that
    has got a host in the meantime continues.
    """
    name = f"steer-{Clock().uuid()[:8]}"
    answers = await bus.listen(topics.BUILD_CANCELLED.at(reply_to=name))
    otherwise = (
        f"no scheduler answered within {CANCEL_SECONDS:g} s that {request} does not wait any more;"
        " a scheduler that returns will still end it"
    )
    try:
        await publish(bus, checked(BuildCancelRequested(build=request, reply_to=name)), patience=PATIENCE)
        return await within(CANCEL_SECONDS, answers.get(), otherwise)
    finally:
        await answers.stop()


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
    unheard = f"; did not answer: {named(silent)}" if silent else ""
    raise OperationRefused(f"{id_}: no move of it is under way{unheard}")


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
        await publish(bus, checked(order), patience=PATIENCE)
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
