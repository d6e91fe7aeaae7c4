"""The documented repair after a fail-over that lost commits (docs/running.md): clients repeat what has not
ended, `berth audit check --agents` finds the differences, `berth audit heal --yes` makes the proven repairs.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from berth import composition, worker_roles
from berth.operations import allocation_repairs, guest_differences, healing
from berth.operations.audit import audit
from berth.operations.cell_records import builds_by_cell
from berth.operations.guest_repairs import RetiredChoice
from berth.operations.stored_claims import stored_holders
from berth.settings import Settings
from bus.delivery import runner
from bus.delivery.runner import Bus
from bus.messages import BuildDeleteRequested
from bus.sql.database import Database
from compute_sim.agent import HANG_SECONDS
from tests.simulation.broker import SimulatedTransport
from tests.simulation.invariants import BUILDS, HELD, Broken, at_rest

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedWorld

_ROUNDS = 6
_VERIFIED = "SELECT id FROM builds WHERE status = 'verifying'"
_UNFINISHED, _NOT_ADOPTED = "try again", "not adopted"
_FULL = "its resources cannot be claimed: refused Refused(refusals=(Full("
_IN_PROGRESS = {"building", "swapping", "deleting", "moving"}


class _LentDatabase:
    """A database of the world that stays open when an operation closes it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def close(self) -> None:
        pass


@contextmanager
def operator_of(world: "SimulatedWorld") -> Iterator[Settings]:
    """Let berth's operations use the databases, the broker and the clock of a world."""

    def database(_: Settings, role: worker_roles.Role) -> _LentDatabase:
        return _LentDatabase(world.databases[f"cell_{role.cell}" if role.cell else role.worker])

    async def ever_made(*_: object) -> bool:
        return True

    def transport(*_: object) -> SimulatedTransport:
        return SimulatedTransport(world.broker)

    with ExitStack() as stack:
        for name, value in (("database_of", database), ("ever_made", ever_made), ("transport", transport)):
            stack.enter_context(patch.object(composition, name, value))
        for module in (runner, allocation_repairs, guest_differences):
            stack.enter_context(patch.object(module, "Clock", lambda: world.clock))
        yield Settings().having(cells=tuple(world.cells))


async def breaches(world: "SimulatedWorld") -> list[str]:
    """Return the violations that `berth audit check` finds when all builds have ended."""
    with operator_of(world) as settings:
        return (await audit(settings, settled=True, clock=world.clock)).breaches


async def repair(world: "SimulatedWorld", bus: Bus, patience: float) -> None:
    """Repair the lost commits as an operator does, with some rounds of `berth audit heal --yes`."""
    with operator_of(world) as settings:
        for number in range(_ROUNDS):
            deadline = world.time() + patience + HANG_SECONDS  # a build or move that is repeated can hang
            # Clients repeat requests after the first repair: before it, placement can have lost the claim of
            # a guest that exists, and a repeated request would be placed on another host.
            await _until_settled(world, bus, settings, deadline, repeats=number > 0)
            found = await audit(settings, settled=True, clock=world.clock)
            guests = await guest_differences.compare_guests(settings)
            if guests.silent:
                await asyncio.sleep(5.0)  # an agent that has just been killed
                continue
            if not found.breaches and not guests.differences:
                if number and not await _unreleased(world):
                    return
                await _until_released(world, deadline)
                continue
            world.note(f"audit: {found.breaches}, {[str(each) for each in guests.differences]}")
            # If repeats changed nothing, a guest whose build has ended for its client is not wanted any more.
            retired: RetiredChoice = "destroy" if number > 1 else ""
            proven, doubts = await healing.repaired(settings, found, yes=True, retired=retired)
            for healed in proven:
                world.note(f"heal: {healed.sentence}: {healed.did}")
                if healed.done and healed.did == "deleted":
                    world.deleted_by_operator.add(healed.sentence.partition(":")[0])
            world.note_traceless()  # of some instances only allocations were left, and are released now
            not_adopted = [healed.did for healed in proven if healed.did.startswith(_NOT_ADOPTED)]
            # A waiting request may take the capacity that a lost preemption gave back: a guest has to go
            world.deleted_by_operator.update(
                healed.sentence.partition(":")[0] for healed in proven if _FULL in healed.did
            )
            if not_adopted or any(why.endswith(_UNFINISHED) for why in doubts.values()):
                await asyncio.sleep(HANG_SECONDS)  # builds that hang have failed then
                await _restart(world, {each.agent[1] for each in guests.differences})
                continue
            undecided = [*doubts, *(healed.sentence for healed in proven if not healed.done)]
            world.note(f"heal leaves {doubts}")
            await _delete(world, bus, settings, undecided)
    raise Broken(
        f"{_ROUNDS} rounds of berth audit heal leave {found.breaches}, {guests.differences}: {doubts}"
    )


async def _unreleased(world: "SimulatedWorld") -> list[str]:
    """Return the holders that are released without a client: not those of moves to be confirmed."""
    verified = set[str]()
    for cell in world.cells:
        if (cell_now := world.committed(f"cell_{cell}")) is not None:
            verified.update(build for (build,) in cell_now.execute(_VERIFIED))
    held = await stored_holders(world.databases["placement"])
    return [consumer for consumer, holder in held.items() if holder.build not in verified]


async def _until_released(world: "SimulatedWorld", deadline: float) -> None:
    """Wait until no clean-up and no migration is left: some second guests are not listed before."""
    while holders := await _unreleased(world):
        if world.time() > deadline:
            raise Broken(f"after the fail-over never released: {holders}")
        await asyncio.sleep(10.0)


async def _until_settled(
    world: "SimulatedWorld", bus: Bus, settings: Settings, deadline: float, *, repeats: bool
) -> None:
    """Wait until no build is in progress; with `repeats`, repeat requests until each build has an end."""
    while True:
        await asyncio.sleep(10.0)
        known = await builds_by_cell(settings, world.cells)
        in_progress = [build for build in known.builds.values() if build.status in _IN_PROGRESS]
        unended = set(world.client.accepted) - set(world.client.ends)
        moving = world.client.moving
        moves = [move for move in moving.open if moving.requested[move].build not in known.doubled]
        if not in_progress and not (repeats and (unended or moves)):
            return
        if world.time() > deadline:
            raise Broken(f"after the fail-over never ended: {unended}, {in_progress}, moves {moves}")
        if repeats:
            await world.client.repeat_once(bus)


async def _restart(world: "SimulatedWorld", agents: set[str]) -> None:
    """Restart agents without `keep_unknown_guests`: they destroy what is left of interrupted builds."""
    world.keeps_unknown_guests = False
    for agent in sorted(agents):
        await world.kill(f"agent.{agent}", world.server_chance)


async def _delete(world: "SimulatedWorld", bus: Bus, settings: Settings, undecided: list[str]) -> None:
    """Delete builds that `berth audit heal` cannot decide in the cells that have them, as `berth delete`
    does.
    """
    known = await builds_by_cell(settings, world.cells)
    for build in [sentence.partition(":")[0] for sentence in undecided]:
        if build not in world.client.accepted:
            continue
        world.deleted_by_operator.add(build)
        world.client.deleted.add(build)
        single = [known.builds[build]] if build in known.builds else []
        for record in known.doubled.get(build, single):
            await world.client.publish(bus, BuildDeleteRequested(build=build, cell=record.cell))
        if build not in known.builds:
            await world.client.publish(bus, world.client.deletion(build))


async def check_repaired(world: "SimulatedWorld") -> None:
    """Check a world after the repair of lost commits, by its databases and its agents."""
    if world.broker.dead:
        raise Broken(f"dead letters: {[letter.reason for letter in world.broker.dead.values()]}")
    held = dict(at_rest(world, "placement").execute(HELD).fetchall())
    stands: dict[str, tuple[str, str]] = {}
    for cell in world.cells:
        for id_, status, root, _ in at_rest(world, f"cell_{cell}").execute(BUILDS):
            if status not in ("active", "shelved", "error", "deleted"):
                raise Broken(f"{id_} is still {status} in cell {cell}")
            if status == "active" and stands.get(id_, ("",))[0] == "active":
                raise Broken(f"{id_} is active in two cells")
            if status == "active" or id_ not in stands:
                stands[id_] = status, root
    active = {id_: root for id_, (status, root) in stands.items() if status == "active"}
    if held != active:
        raise Broken(f"after the repair {held} hold resources, and {active} are active")
    guests = defaultdict[str, list[str]](list)
    for guest in world.guests():
        guests[guest.build].append(guest.root)
    if twice := {build: roots for build, roots in guests.items() if len(roots) > 1}:
        raise Broken(f"after the repair there are several guests of {twice}")
    if not world.forgetful and {build: roots[0] for build, roots in guests.items()} != active:
        raise Broken(f"after the repair the guests are {dict(guests)}, and {active} are active")
    _check_ends(world, active)


def _check_ends(world: "SimulatedWorld", active: dict[str, str]) -> None:
    """Check the last reported end of each build that was neither deleted nor moved, and is not traceless."""
    names = {host.root: (host.host, host.root) for host in world.hosts()}
    client = world.client
    changed = client.deleted | client.preempted | world.victims | world.deleted_by_operator
    changed |= client.moving.builds | world.traceless
    for build, (status, host) in client.ends.items():
        if status != "active" or build in changed:
            continue
        if build not in active:
            raise Broken(f"{build} was reported as active on {host}, and is lost")
        if host not in names[active[build]]:
            raise Broken(f"{build} was reported as active on {host}, and is on {names[active[build]]}")
