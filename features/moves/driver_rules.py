"""Tests of operators' drivers of hypervisors that move guests. A test's docstring is its rule."""

from collections.abc import Sequence

from compute_sim.extension import AgentDisk, DriverStand, Rule, RuleBroken, SimOptions, SimulatedAgent
from features.moves.agent_moves import MovingDriver, SimulatedMoves, moves_of
from features.moves.messages import MoveKind, MoveOrdered, MovePhase, MoveReported


def rules_of(stand: DriverStand) -> Sequence[Rule]:
    """Return the tests for the types of moves that an operator's driver of a hypervisor supports."""
    kinds: Sequence[MoveKind] = moves_of(stand.guest_driver) if stand.runs_guests else ()
    rules: list[Rule] = []
    for kind in kinds:
        rules += {"shelve": [_shelves], "rebuild": [_rebuilds]}.get(kind, [_moves(kind), _returns(kind)])
    return rules


async def _phases(stand: DriverStand, build: str, *orders: MoveOrdered) -> None:
    building = stand.build_order(build)
    agent = SimulatedAgent(building.agent, SimOptions(), AgentDisk(), driven=stand.driven)
    moves = SimulatedMoves(agent)
    report = await agent.build(building)
    if report is None or report.outcome != "built":
        raise RuleBroken(f"the agent reported {report.cause or report.outcome if report else 'nothing'}")
    for order in orders:
        for _ in range(2):  # a repeated order must have the same result
            _check_done(order, await moves.move(order))
        guest = stand.guest(build, order.attempt, stand.roots.index(order.root))
        await _driver(stand).move(order, guest)  # as after a crash of the agent


def _driver(stand: DriverStand) -> MovingDriver:
    driver = stand.guest_driver
    assert isinstance(driver, MovingDriver)
    return driver


def _check_done(order: MoveOrdered, report: MoveReported | None) -> None:
    if report is None or report.outcome != "done":
        cause = f"{report.outcome}: {report.cause}" if report else "nothing"
        raise RuleBroken(f"{order.phase} on {order.host}: the agent reported {cause}")


def _moves(kind: MoveKind) -> Rule:
    async def rule(stand: DriverStand) -> None:
        build = stand.new_build()
        prepare = move_order(stand, kind, "prepare", build, step=1, attempt=2, host=1)
        send = move_order(stand, kind, "send", build, step=2, attempt=1, host=0)
        start = move_order(stand, kind, "start", build, step=3, attempt=2, host=1)
        await _phases(stand, build, prepare, send, start)
        running = [guest for guest in await stand.listed(build) if guest.state == "running"]
        if [(guest.root, guest.attempt) for guest in running] != [(stand.roots[1], 2)]:
            raise RuleBroken(
                f"after `start` {len(running)} guests run; expected attempt 2 on {stand.hosts[1]}"
            )
        await stand.guest_driver.destroy(stand.guest(build, 1, 0))
        await stand.expect(build, (1, 2, "running"))

    rule.__doc__ = f"{kind}: after the move the guest must run only at the destination."
    return rule


def _returns(kind: MoveKind) -> Rule:
    async def rule(stand: DriverStand) -> None:
        build = stand.new_build()
        prepare = move_order(stand, kind, "prepare", build, step=1, attempt=2, host=1)
        send = move_order(stand, kind, "send", build, step=2, attempt=1, host=0)
        await _phases(stand, build, prepare, send)
        await stand.guest_driver.destroy(stand.guest(build, 2, 1))
        resume = move_order(stand, kind, "resume", build, step=3, attempt=3, host=0, was=1)
        await _driver(stand).move(resume, stand.guest(build, 3, 0))
        await stand.expect(build, (0, 3, "running"))

    rule.__doc__ = (
        f"{kind}: after `send`, `resume` must run the guest at the source again, under its new attempt."
    )
    return rule


async def _shelves(stand: DriverStand) -> None:
    """shelve: a driver must stop the guest in the phase `send`."""
    build = stand.new_build()
    await _phases(stand, build, move_order(stand, "shelve", "send", build, step=1, attempt=1, host=0))
    await stand.expect(build, (0, 1, "stopped"))


async def _rebuilds(stand: DriverStand) -> None:
    """rebuild: the guest of the new attempt must replace the guest of the former attempt."""
    build = stand.new_build()
    order = move_order(stand, "rebuild", "rebuild", build, step=1, attempt=2, host=0, was=1)
    await _phases(stand, build, order)
    await stand.expect(build, (0, 2, "running"))


def move_order(
    stand: DriverStand,
    kind: MoveKind,
    phase: MovePhase,
    build: str,
    *,
    step: int,
    attempt: int,
    host: int,
    was: int = 0,
) -> MoveOrdered:
    """Return an order for a phase of a move, to test a driver."""
    stand.guest(build, attempt, host)
    return MoveOrdered(
        **stand.address(build, attempt, host),
        move=build,
        kind=kind,
        phase=phase,
        step=step,
        was=was,
        peer=stand.hosts[1 - host],
        spec=stand.spec,
        allocations=stand.allocations(host),
    )
