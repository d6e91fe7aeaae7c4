"""Moves all instances away from hosts, a limited number at a time, for drains and evacuations."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

from msgspec import structs

from berth.operations.cells import instance_pages
from berth.operations.host_states import causes_of
from berth.operations.publishing import checked
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused, Unavailable, Unroutable
from bus.queries import PRESENT, FindInstances, Instance
from bus.resources import Consumer, FindAllocations, FindProviders, Provider
from bus.vocabulary import portions
from features.moves.messages import FindMoves, MoveRequested
from features.moves.moving import (
    VERIFYING,
    FollowedMoves,
    MoveListener,
    MoveOutcome,
    SupposedMove,
    following,
    moves_of,
    supposed,
)

_HOSTS_A_QUESTION = 200
POLL_SECONDS = 1.0  # between two checks of builds and deletions in progress
TIMES = 3  # attempts to move an instance that changes its state after it was listed
_SETTLING = ("building", "swapping", "deleting")


@dataclass
class Emptied:
    """The progress of a drain: its builds by result, and the builds that stay, each with the reason."""

    seen: set[str] = field(default_factory=set)
    under_way: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)  # deleted, or moved by another client
    stay: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        return len(self.moved) + len(self.gone) + len(self.stay)

    def sentence(self) -> str:
        rest = len(self.seen) - self.finished - len(self.under_way)
        counts = (
            (len(self.gone), "deleted meanwhile"),
            (len(self.under_way), "under way"),
            (rest, "not started"),
        )
        words = [f"{count} {what}" for count, what in counts if count]
        stay = f"{len(self.stay)} stay" if self.stay else "none stays"
        return ", ".join([f"{len(self.moved)} moved", *words, stay])


class EmptyingListener(MoveListener):
    """Base class of objects that receive the progress of a drain; its methods do nothing."""

    def so_far(self, far: Emptied) -> None: ...


@dataclass
class Emptying:
    """Moves the instances of hosts elsewhere in rounds, until a round finds no instance that can be moved.

    If a drain is stopped, moves in progress complete; a drain that is started again follows them and
    continues.
    """

    bus: Bus
    hosts: Sequence[Provider]
    asked: MoveRequested  # the request for each instance
    most: int  # moves at a time
    listener: EmptyingListener
    _: KW_ONLY
    patient: bool = True  # wait for builds and deletions in progress
    because: str = ""  # a host is emptied only while it is disabled for this cause
    so_far: Emptied = field(default_factory=Emptied)
    _opened: set[str] = field(default_factory=set)  # roots that are no longer disabled for the cause
    _changed: Counter[str] = field(default_factory=Counter)

    async def run(self) -> Emptied:
        async with (
            following(self.bus, f"empty-{Clock().uuid()[:8]}", self.listener) as moves,
            asyncio.TaskGroup() as group,
        ):
            watching = group.create_task(self._watch())
            while await self._round(moves):
                pass
            watching.cancel()
        return self.so_far

    async def _round(self, moves: FollowedMoves) -> bool:
        """Try once to move each instance on the hosts, except instances that are known to stay; return False
        if the hosts have no instances except these.
        """
        far = self.so_far
        there = {instance.build: instance for instance in await instances_on(self.bus, self.hosts)}
        far.seen |= there.keys()
        far.gone |= far.seen - there.keys() - far.moved - far.stay.keys()
        for build in far.moved & there.keys():
            far.moved.discard(build)
            far.stay[build] = "it was moved, and is there again"
        open_ = [instance for build, instance in sorted(there.items()) if build not in far.stay]
        settling = [instance for instance in open_ if instance.status in _SETTLING]
        movable = [instance for instance in open_ if instance.status == "active"]
        moving = [instance for instance in open_ if instance.status not in (*_SETTLING, "active")]
        if not self.patient:
            far.stay |= {instance.build: f"{instance.status}: its cell sees to it" for instance in settling}
        self.listener.so_far(self.so_far)
        async with asyncio.TaskGroup() as group:
            for instance in moving:
                group.create_task(self._join(moves, instance))
            for _ in range(min(self.most, len(movable))):
                group.create_task(self._work(moves, movable))
            if settling and self.patient:
                group.create_task(asyncio.sleep(POLL_SECONDS))
        return bool(open_)

    async def _work(self, moves: FollowedMoves, movable: list[Instance]) -> None:
        """Move instances from the list `movable`, one after the other; several such tasks share the list."""
        while movable:
            one = movable.pop(0)
            if one.root in self._opened:
                self.so_far.stay[one.build] = f"its host is not closed because of {self.because} any more"
                continue
            self.so_far.under_way.add(one.build)
            request = structs.replace(
                self.asked, move=Clock().uuid(), build=one.build, cell=one.cell, reply_to=moves.reply_to
            )
            self._ended(await moves.ask(checked(request)))
            self.listener.so_far(self.so_far)

    async def _watch(self) -> None:
        """Check repeatedly from which hosts the cause of the drain was removed: their instances are no longer
        moved.
        """
        while self.because:
            await asyncio.sleep(POLL_SECONDS)
            for ids in portions((host.id for host in self.hosts), _HOSTS_A_QUESTION):
                with suppress(Unavailable, Unroutable):  # without an answer the last state is assumed
                    found = await self.bus.asker(topics.PROVIDERS)(FindProviders(ids=ids, parts=("traits",)))
                    self._opened -= {*ids}
                    self._opened |= {
                        provider.id for provider in found.providers if self.because not in causes_of(provider)
                    }

    async def _join(self, moves: FollowedMoves, instance: Instance) -> None:
        """Wait until an instance's move that another client requested has ended."""
        question = FindMoves(cell=instance.cell, builds=(instance.build,), under_way=True)
        found = await moves_of(self.bus, question)
        if not found:
            await asyncio.sleep(POLL_SECONDS)
            return
        self.so_far.under_way.add(instance.build)
        outcome = await moves.join(found[0].move, instance.cell)
        if outcome.end == "done":
            self.so_far.under_way.discard(instance.build)
            if outcome.host not in {name for host in self.hosts for name in (host.host, host.name)}:
                self._ended(outcome)
        elif outcome.end == VERIFYING:
            self._ended(outcome)
        self.so_far.under_way.discard(instance.build)
        self.listener.so_far(self.so_far)

    def _ended(self, outcome: MoveOutcome) -> None:
        far = self.so_far
        far.under_way.discard(outcome.build)
        if outcome.end == "done":
            far.moved.add(outcome.build)
        elif outcome.end == "deleted":
            far.gone.add(outcome.build)
        elif outcome.code in ("status", "moving") and self._changed[outcome.build] < TIMES:
            self._changed[outcome.build] += 1  # its state changed after the listing: retry in the next round
            return
        else:
            far.stay[outcome.build] = why_it_stays(outcome)
        self.listener.on_outcome(outcome)


def why_it_stays(outcome: MoveOutcome) -> str:
    if outcome.end == VERIFYING:
        return f"it waits to be confirmed (`berth confirm {outcome.build}`)"
    code = f"[{outcome.code}] " if outcome.code else ""
    return f"{code}{outcome.end if not outcome.reason else outcome.reason}"


async def instances_on(bus: Bus, hosts: Iterable[Provider]) -> list[Instance]:
    """Return the unfinished instances on the hosts; raise OperationRefused if a cell does not answer."""
    found: list[Instance] = []
    for host in hosts:
        if not host.cell:
            continue
        try:
            question = FindInstances(cell=host.cell, host=host.id, statuses=PRESENT)
            async for page in instance_pages(bus, question):
                found += page.instances
        except (Unavailable, Unroutable) as problem:
            raise OperationRefused(
                f"cell {host.cell} does not list the instances on {host.host or host.name}: {problem}"
            ) from None
    return found


async def remaining_consumers(bus: Bus, host: Provider, excluding: Collection[str]) -> list[Consumer]:
    """Return the consumers with allocations from the host, except the ids in `excluding`."""
    tree = (await bus.asker(topics.PROVIDERS)(FindProviders(in_tree=host.id, parts=()))).providers
    question = FindAllocations(providers=tuple(provider.id for provider in tree))
    consumers = (await bus.asker(topics.ALLOCATIONS)(question)).consumers
    return [consumer for consumer in consumers if consumer.id not in excluding]


def requests_for(asked: MoveRequested, instances: Iterable[Instance]) -> list[MoveRequested]:
    """Return a move request for each instance: a copy of `asked` with a new id, the build and its cell."""
    clock = Clock()
    return [
        checked(structs.replace(asked, move=clock.uuid(), build=instance.build, cell=instance.cell))
        for instance in instances
    ]


@dataclass(frozen=True)
class SupposedHost:
    """The expected result of draining a host, from an evaluation without moves."""

    host: Provider
    statuses: Counter[str]  # its instances by status
    stay: dict[str, SupposedMove]  # instances without a destination


async def suppose_emptying(bus: Bus, hosts: Sequence[Provider], asked: MoveRequested) -> list[SupposedHost]:
    """Return for each host which instances a drain could move and which would stay. `asked`: the request to
    copy for each move.
    """
    instances = {host.id: await instances_on(bus, [host]) for host in hosts}
    active = [one for host in hosts for one in instances[host.id] if one.status == "active"]
    found = zip(active, await supposed(bus, requests_for(asked, active), hosts), strict=True)
    stay = {instance.build: answer for instance, answer in found if not answer.fits}
    return [
        SupposedHost(
            host,
            Counter(one.status for one in instances[host.id]),
            {one.build: stay[one.build] for one in instances[host.id] if one.build in stay},
        )
        for host in hosts
    ]
