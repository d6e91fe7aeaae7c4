"""Runs an agent's guests by operators' hypervisor drivers. Later orders can interrupt a driver's call."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, Literal

from bus.errors import Unavailable
from bus.messages import BuildOrdered, DestroyOrdered
from compute_sim.core.faults import Fate
from compute_sim.guest_driver import DriverError, GuestDriver
from compute_sim.guests import AgentJob, GuestRecord

log = logging.getLogger(__name__)

LONGEST_CALL = 1500.0  # less than the half hour after which RabbitMQ redelivers an unacknowledged order


_NO_WAIT = nullcontext()


class DrivenGuests:
    """Calls operators' hypervisor drivers to create, start, stop and destroy an agent's guests."""

    def __init__(self, drivers: Mapping[str, GuestDriver] | None = None) -> None:
        self._of_root = dict(drivers or {})
        self._locks: dict[tuple[str, str], tuple[asyncio.Lock, list[None]]] = {}

    def of(self, root: str) -> GuestDriver | None:
        """Return the driver of a host's hypervisor, or None if the host is simulated."""
        return self._of_root.get(root)

    def turn(self, build: str, root: str) -> AbstractAsyncContextManager[None]:
        """Return a context manager that first waits until the host executes no other order for the same
        build, and then lets none begin until its block ends. For a simulated host it does neither.
        """
        return self._locked(build, root) if root in self._of_root else _NO_WAIT

    @asynccontextmanager
    async def _locked(self, build: str, root: str) -> AsyncIterator[None]:
        key = build, root
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]

    async def create(self, order: BuildOrdered, guest: GuestRecord, job: AgentJob) -> Fate | None:
        """Create a guest with the host's driver, and return the outcome.

        Return None if an order to destroy the guest interrupted the driver's call.
        """
        driver = self._of_root[order.root]
        fate = await self.call(job, lambda: driver.create(guest, order.spec), "built")
        if fate is None or fate.kind == "built" or await self.succeeds("destroy", guest):
            return fate
        return Fate("hang", 0.0, fate.cause)  # parts of the guest may remain

    async def stop_within(self, grace: float, guests: Iterable[GuestRecord]) -> None:
        """Stop guests before they are destroyed, in at most `grace` seconds in all; 0: do not stop them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                for guest in guests if grace else ():
                    await self.succeeds("stop", guest)

    async def destroy(self, order: DestroyOrdered, known: Iterable[GuestRecord]) -> None:
        """Destroy the guests that an order names: recorded guests (`known`) and guests that only the driver
        lists. Raise Unavailable if a guest may remain.
        """
        driver = self._of_root.get(order.root)
        if driver is None:
            return
        attempts = range(order.above + 1, order.attempt + 1)
        address = {name: getattr(order, name) for name in ("build", "cell", "agent", "root", "host")}
        try:
            victims = {guest.attempt: guest for guest in known if guest.root == order.root}
            async with asyncio.timeout(LONGEST_CALL):
                for found in await driver.guests():
                    if (found.build, found.root) == (order.build, order.root) and found.attempt in attempts:
                        left = GuestRecord(**address, attempt=found.attempt, allocations={})
                        victims.setdefault(found.attempt, left)
                for attempt in sorted(victims):
                    await driver.destroy(victims[attempt])
        except Exception as problem:  # an operator's code may raise anything
            raise Unavailable(
                f"{order.host}: the guest of {order.build} remains: {_cause(problem)}"
            ) from None

    async def succeeds(self, method: Literal["destroy", "start", "stop"], guest: GuestRecord) -> bool:
        """Call a method of the host's driver for a guest; return whether the call succeeded.

        A simulated host has no driver: return True.
        """
        driver: Any = self._of_root.get(guest.root)
        if driver is None:
            return True
        try:
            async with asyncio.timeout(LONGEST_CALL):
                await getattr(driver, method)(guest)
        except Exception as problem:  # an operator's code may raise anything
            log.error(
                "%s: %s of the guest of %s failed: %s", guest.host, method, guest.build, _cause(problem)
            )
            return False
        return True

    async def call(
        self, job: AgentJob, work: Callable[[], Awaitable[None]], success: Literal["built", "done"]
    ) -> Fate | None:
        """Call a driver for a job, and return the outcome; None if a later order interrupted the call."""
        limit = asyncio.timeout(LONGEST_CALL)
        try:
            async with limit:
                job.limit = limit
                await work()
        except DriverError as problem:
            return Fate("reschedule" if problem.retry else "abort", 0.0, problem.cause)
        except Exception as problem:  # an operator's code may raise anything
            if job.is_interrupted:
                return None
            if limit.expired():
                return Fate("reschedule", 0.0, f"its driver has not ended it within {LONGEST_CALL:g} s")
            log.exception("the driver failed for build %s", job.build)
            return Fate("reschedule", 0.0, _cause(problem))
        finally:
            job.limit = None
        return None if job.is_interrupted else Fate(success, 0.0)


def _cause(problem: Exception) -> str:
    return problem.cause if isinstance(problem, DriverError) else f"{type(problem).__name__}: {problem}"
