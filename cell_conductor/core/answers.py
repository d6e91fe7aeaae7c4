"""Applies placement's answers to a build: an attempt on the next host, or the end.

A build is doomed when it can only end in error; then its allocations remain to be released.
"""

from itertools import zip_longest

from msgspec.structs import replace

from bus.claims import Claimed, ClaimResult, Held, OutsideCell, Refusal, Refused, ReleaseResult, Retired
from bus.messages import Attempt, Selection
from bus.refused_edits import Contended
from cell_conductor.core import build as say
from cell_conductor.core.build import MAX_CAUSE, Build, Effects, Leftover
from cell_conductor.core.limits import AttemptLimits
from cell_conductor.core.reshaped import holding, position_of


def swapped(build: Build, result: ClaimResult, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    """Apply the answer to a claim of the next host."""
    match result:
        case Claimed():
            return _moved(build, result.choice, result.generation, result.refused, now, limits)
        case Held():
            return _held(build, result, now, limits)
        case Refused():
            build = _refused(build, build.spares, result.refusals, now)
            return doomed(build, "every alternate was refused")
        case Retired():
            build, _ = doomed(build, f"its claim has ended ({result.why})")
            return given_back(build, result)
        case Contended():
            return build, (say.question(build),)


def _held(build: Build, held: Held, now: float, limits: AttemptLimits) -> tuple[Build, Effects]:
    """Handle a claim that failed because placement has another generation."""
    position = position_of(build, held)
    if position is not None:
        build = holding(build, position, held.allocations)
        if position > build.at:  # the claim had succeeded before a crash
            return _moved(build, position - build.at - 1, held.generation, (), now, limits)
    build = replace(build, generation=held.generation if held.allocations else None)
    if position is not None:  # changed by another client, but still ours
        return build, (say.question(build),)
    holds = ", ".join(sorted(held.allocations)) or "nothing"
    return doomed(build, f"its claim was changed by somebody else (it holds {holds})")


def _moved(
    build: Build,
    choice: int,
    generation: int,
    refused: tuple[Refusal, ...],
    now: float,
    limits: AttemptLimits,
) -> tuple[Build, Effects]:
    """Build on the alternate that placement granted."""
    left_behind = say.destroy(build)
    build = replace(
        _refused(build, build.spares[:choice], refused, now),
        status="building",
        at=build.at + 1 + choice,
        attempt=build.attempt + 1,
        generation=generation,
        started=now,
        deadline=now + limits.build_timeout,
    )
    return build, (left_behind, say.order(build))


def _refused(build: Build, spares: tuple[Selection, ...], refusals: tuple[Refusal, ...], now: float) -> Build:
    """Record alternates that placement refused; they do not count as attempts."""
    return replace(build, attempts=(*build.attempts, *turned_down(spares, refusals, now)))


def turned_down(
    spares: tuple[Selection, ...], refusals: tuple[Refusal, ...], now: float
) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            host=spare.host,
            agent=spare.agent,
            outcome="refused",
            cause=str(refusal or "the reason was lost in a restart"),
            started=now,
            ended=now,
        )
        for spare, refusal in zip_longest(spares, refusals[: len(spares)])
    )


def given_back(build: Build, result: ReleaseResult) -> tuple[Build, Effects]:
    """Apply the answer to a release: nothing is held any more, so the end can be reported."""
    match result:
        case Held():  # release it, whichever claim changed it
            build, said = _caught_up(build, result)
            return build, (*said, say.question(build))
        case Contended():
            return build, (say.question(build),)
        case OutsideCell(why=why) if not build.end:  # not ours to release: the end says so
            doom = f"{build.doom}; placement does not take it back: {why}"[:MAX_CAUSE]
            build = replace(build, doom=doom)
    if build.status == "deleting":
        news: Effects = ()
        if not build.end:
            build = replace(build, end="error")
            news = (say.ended(build),)
        build = replace(build, status="deleted", generation=None)
        return build, (*news, *(say.deleted(build, reply_to) for reply_to in build.replies))
    build = replace(build, status="error", end="error", generation=None)
    return build, (say.destroy(build), say.ended(build))


def _caught_up(build: Build, held: Held) -> tuple[Build, Effects]:
    """Correct the build after a claim that succeeded without our knowing, shown by another generation in
    placement.

    Then the leftover of the earlier attempt holds its own resources already, and the current allocations are
    on the next host. If a move was on its way back, the current allocations are those of the leftover at the
    source.
    """
    build = replace(build, generation=held.generation if held.allocations else None)
    if (left := _taken_over(build, held)) is not None:
        return replace(holding(build, left.at, held.allocations), at=left.at, attempt=left.attempt), ()
    position = position_of(build, held)
    if position is None or position == build.at:
        return build, ()
    there = replace(holding(build, position, held.allocations), at=position, attempt=build.attempt + 1)
    return there, (say.destroy(build),)


def _taken_over(build: Build, held: Held) -> Leftover | None:
    """Return the leftover whose resources the build itself holds."""
    for left in build.leftovers:
        there = build.hosts[left.at]
        same = there.choice.allocations == held.allocations != build.host.choice.allocations
        if left.gone or left.attempt == build.attempt:
            continue
        if same or (there.root in held.roots and build.host.root not in held.roots):
            return left
    return None


def doomed(build: Build, why: str) -> tuple[Build, Effects]:
    """Decide that the build ends in error, and release its allocations."""
    chain = "; ".join(f"{tried.host} {tried.outcome}: {tried.cause}" for tried in build.attempts)
    build = replace(build, doom=f"{why}: {chain}"[:MAX_CAUSE])
    return build, (say.question(build),)
