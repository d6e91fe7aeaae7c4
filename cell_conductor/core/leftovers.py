"""Guests that may be left on hosts that a build has left. A consumer of their own holds their resources.

The resources are released when the agent confirms the destruction, or after a time limit.
"""

from collections.abc import Collection

from msgspec.structs import replace

from bus.claims import Held, ReleaseRequested
from bus.vocabulary import Contended
from cell_conductor.core import build as say
from cell_conductor.core.build import Build, Effects, Leftover
from cell_conductor.core.events import CleanedUp

SETTLED = ("active", "shelved", "moved", "error", "deleted")


def add_leftover(build: Build, now: float, cleanup_timeout: float, above: int = 0) -> Build:
    """Record that the guest of this attempt may still be there."""
    return with_leftover(build, Leftover(build.attempt, build.at, now + cleanup_timeout, above=above))


def with_leftover(build: Build, left: Leftover) -> Build:
    if any(leftover.attempt == left.attempt for leftover in build.leftovers):
        return build
    return replace(build, leftovers=(*build.leftovers, left))


def confirm_leftover(build: Build, attempt: int, now: float) -> Build:
    """Record the agent's confirmation."""
    if not any(left.attempt == attempt and not left.gone for left in build.leftovers):
        return build
    leftovers = tuple(
        replace(left, gone=True, until=now) if left.attempt == attempt else left for left in build.leftovers
    )
    return replace(build, leftovers=leftovers)


def release_due_leftover(build: Build, now: float) -> Effects:
    """Release the resources of one leftover that is due."""
    for left in build.leftovers:
        # Until placement has answered, the room of the last attempt may be on its way to the keeper.
        undecided = left.attempt == build.attempt and build.status not in SETTLED
        if now >= left.until and not undecided:
            return _free(build, left)
    return ()


def _free(build: Build, left: Leftover) -> Effects:
    """Release a leftover's resources. If it was not confirmed, also order its destruction."""
    release = ReleaseRequested(consumer=say.holder_consumer_of(build, left), generation=None, fenced=False)
    if left.gone:
        return (release,)
    return (say.destroy_left(build, left), release)


def leftover_orders_on(build: Build, roots: Collection[str]) -> Effects:
    """Return orders for unconfirmed leftovers on these hosts, for their new owners."""
    return tuple(
        say.destroy_left(build, left)
        for left in build.leftovers
        if not left.gone and build.hosts[left.at].root in roots
    )


def undone(build: Build) -> Effects:
    """Return orders for all unconfirmed leftovers."""
    return tuple(say.destroy_left(build, left) for left in build.leftovers if not left.gone)


def leftover_released(build: Build, event: CleanedUp) -> Build:
    """Remove the leftover after placement's answer."""
    if isinstance(event.result, Contended | Held):
        return build
    left = tuple(
        leftover for leftover in build.leftovers if say.holder_consumer_of(build, leftover) != event.consumer
    )
    return build if left == build.leftovers else replace(build, leftovers=left)


def timed(build: Build) -> Build:
    """Set the deadline of a settled build to its next leftover."""
    if build.status not in SETTLED or build.moving is not None:
        return build
    deadline = min((left.until for left in build.leftovers), default=0.0)
    return build if build.deadline == deadline else replace(build, deadline=deadline)
