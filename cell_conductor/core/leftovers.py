"""Guests that builds left behind on hosts: a holder consumer has their resources until the agent confirms the
destruction, or until a time limit passes.
"""

from collections.abc import Collection

from msgspec.structs import replace

from bus.claims import Held, ReleaseRequested, ReleaseResult
from bus.messages import DestroyOrdered
from bus.vocabulary import Contended
from cell_conductor.core import build as builds
from cell_conductor.core.build import Build, Effects, Leftover


def add(build: Build, now: float, cleanup_timeout: float, above: int = 0) -> Build:
    """Return the build with the guest of its current attempt left behind on its host."""
    return record(build, Leftover(build.attempt, build.at, now + cleanup_timeout, above=above))


def record(build: Build, left: Leftover) -> Build:
    """Return the build with a guest left behind, unless one of the same attempt is recorded already."""
    if any(leftover.attempt == left.attempt for leftover in build.leftovers):
        return build
    return replace(build, leftovers=(*build.leftovers, left))


def confirm(build: Build, attempt: int, now: float) -> Build:
    """Return the build after the agent has confirmed that the guest of an attempt is destroyed."""
    if not any(left.attempt == attempt and not left.is_destroyed for left in build.leftovers):
        return build
    leftovers = tuple(
        replace(left, is_destroyed=True, until=now) if left.attempt == attempt else left
        for left in build.leftovers
    )
    return replace(build, leftovers=leftovers)


def release_due(build: Build, now: float, is_settled: bool) -> Effects:
    """Return the request to release the resources of the first guest left behind whose time limit has passed;
    if its destruction is not confirmed, preceded by an order to destroy it again. Return () if no time limit
    has passed. `is_settled`: the build waits for no answer.
    """
    for left in build.leftovers:
        # Until placement has answered a claim, it is open whether the holder consumer has the resources of
        # the last attempt.
        undecided = left.attempt == build.attempt and not is_settled
        if now >= left.until and not undecided:
            release = ReleaseRequested(consumer=build.holder_of(left), generation="any")
            return (release,) if left.is_destroyed else (destroy(build, left), release)
    return ()


def destroy_all(build: Build, attempt: int | None = None, roots: Collection[str] | None = None) -> Effects:
    """Return orders to destroy guests left behind: of `attempt` (None: any), on `roots` (None: any)."""
    left = (left for left in build.leftovers if not left.is_destroyed and attempt in (None, left.attempt))
    leftovers = (each for each in left if roots is None or build.hosts[each.at].root in roots)
    return tuple(destroy(build, each) for each in leftovers)


def without_released(build: Build, consumer: str, result: ReleaseResult) -> Build:
    """Return the build without the guest left behind that `consumer` holds, if placement has released it."""
    if isinstance(result, Contended | Held):
        return build
    remaining = tuple(left for left in build.leftovers if build.holder_of(left) != consumer)
    return build if remaining == build.leftovers else replace(build, leftovers=remaining)


def destroy(build: Build, left: Leftover) -> DestroyOrdered:
    """Return the order to destroy a guest left behind."""
    return builds.destroy(replace(build, attempt=left.attempt, at=left.at), left.above)
