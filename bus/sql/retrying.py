"""Work that lost a race is done again, in a new transaction, after a short random while."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import tenacity
from prometheus_client import Counter

from bus.clock import Clock
from bus.sql.failures import Conflict

LOST_RACES = Counter(
    "berth_transactions_lost", "transactions that were retried after a serialization failure"
)


P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 8
SHORTEST_WAIT, LONGEST_WAIT = 0.005, 0.1


class RunsAgain(Protocol):
    """Makes of any work the same work, done again when it lost a race."""

    def __call__(self, work: Callable[P, Awaitable[T]], /) -> Callable[P, Awaitable[T]]: ...


@overload
def retrying(clock: Clock | None = None, *, attempts: int = ATTEMPTS) -> RunsAgain: ...


@overload
def retrying(
    clock: Clock | None = None, *, attempts: int = ATTEMPTS, otherwise: Callable[P, T]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]: ...


def retrying(
    clock: Clock | None = None, *, attempts: int = ATTEMPTS, otherwise: Callable[P, T] | None = None
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Run it again when it lost a race (Conflict, nothing else), after a random while that grows.

    After the last attempt the Conflict is raised, or the answer is what `otherwise` makes of the same
    arguments. The clock's chance decides how long to wait. Put it around what opens the transaction, never
    inside one.
    """
    chance = (clock or Clock()).chance

    def wait(state: tenacity.RetryCallState) -> float:
        longest = min(LONGEST_WAIT, SHORTEST_WAIT * 2**state.attempt_number)
        return chance.uniform(SHORTEST_WAIT, longest)

    def fall_back(state: tenacity.RetryCallState) -> Any:
        assert otherwise is not None
        return otherwise(*state.args, **state.kwargs)

    patiently = tenacity.retry(
        retry=tenacity.retry_if_exception_type(Conflict),
        stop=tenacity.stop_after_attempt(attempts),
        wait=wait,
        reraise=True,
        retry_error_callback=fall_back if otherwise is not None else None,
    )

    def retried(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(work)
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return await work(*args, **kwargs)  # most succeed at the first attempt and need no counter
            except Conflict as lost:
                losses = [lost]
                LOST_RACES.inc()

            async def again(*args: P.args, **kwargs: P.kwargs) -> T:
                if losses:
                    raise losses.pop()
                return await work(*args, **kwargs)

            return await patiently(again)(*args, **kwargs)

        return run

    return retried
