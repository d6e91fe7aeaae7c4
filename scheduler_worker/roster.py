"""Which schedulers are alive: each says so every second, and who is silent for some is held to be gone."""

import numpy as np

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.messages import SchedulerAlive
from scheduler_worker.core.slices import Bools, Hashes, hash_of, slice_of

SAYS_SECONDS = 1.0
GONE_SECONDS = 3.5  # a scheduler that pauses longer meets others at its hosts: that costs claims, no more


class Roster:
    """Who shares the hosts with this scheduler, and which of them are its own to look at first."""

    def __init__(self, clock: Clock, name: str = "") -> None:
        self.name = name or f"s{clock.uuid()[:8]}"
        self._clock = clock
        self._heard: dict[str, float] = {}
        self._live: tuple[str, ...] = (self.name,)
        self._known: tuple[object, ...] = ()
        self._slice: Bools | None = None
        self._hashes: Hashes = np.zeros(0, np.uint64)

    @property
    def live(self) -> tuple[str, ...]:
        """Their names, ours among them, in order."""
        after = self._clock.monotonic() - GONE_SECONDS
        if any(at < after for at in self._heard.values()):
            self._heard = {name: at for name, at in self._heard.items() if at >= after}
            self._live = tuple(sorted({self.name, *self._heard}))
        return self._live

    def alive(self) -> SchedulerAlive:
        return SchedulerAlive(scheduler=self.name)

    def leaving(self) -> SchedulerAlive:
        """Its hosts are for the others at once."""
        return SchedulerAlive(scheduler=self.name, leaving=True)

    async def hear(self, message: SchedulerAlive) -> None:
        if message.scheduler == self.name:
            return
        if message.leaving:
            self._heard.pop(message.scheduler, None)
        else:
            self._heard[message.scheduler] = self._clock.monotonic()
        self._live = tuple(sorted({self.name, *self._heard}))

    def ours(self, source: CandidateSource) -> Bools | None:
        """By position, the hosts to look at first; None: all of them."""
        live = self.live
        if len(live) == 1:
            return None
        known = (live, id(source), source.layout, source.size)
        if known != self._known:
            if known[1:] != self._known[1:]:
                self._hashes = np.zeros(source.size, np.uint64)
                for host in source.hosts():
                    self._hashes[host.position] = hash_of(host.uuid)
            self._slice = slice_of(self._hashes, live, self.name)
            self._known = known
        return self._slice
