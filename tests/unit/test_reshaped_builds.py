"""A conductor learns the new providers of a build's allocations on a reshaped host."""

from typing import Any

import pytest
from msgspec.structs import replace

from bus.claims import Claimed, ClaimRequested, Full, Held, Moved, Refused, Released, ReleaseRequested
from bus.messages import AgentReported, BuildOrdered, BuildReshaped, HostFailed
from bus.vocabulary import Message
from cell_conductor.core.build import Build
from cell_conductor.core.events import AttemptLimits, Event, ReleaseAnswer, Stalled, SwapAnswered
from cell_conductor.core.step import step
from tests.support.conductor_builders import a_build_order, a_delete, a_placed, a_selection, an_agent_report

LIMITS = AttemptLimits()
PLACED = a_placed(generation=1)
FIRST = a_build_order(PLACED)
ON_HOST0, ON_HOST1 = (a_selection(number).root for number in (0, 1))
NUMA = {"numa0": {"VCPU": 1}}
FAILED = an_agent_report(FIRST, "failed", cause="no disk")
BUILT = an_agent_report(FIRST, "built")
SWAPPED = SwapAnswered(1, Claimed(choice=0, generation=2, number=5))


def told(generation: int = 1, number: int = 9, root: str = ON_HOST0, **to: Any) -> BuildReshaped:
    return BuildReshaped(
        build=PLACED.build,
        cell=PLACED.cell,
        root=root,
        generation=generation,
        number=number,
        allocations=to.get("allocations", NUMA),
    )


def after(*events: Event, build: Build | None = None) -> tuple[Build, tuple[Message, ...]]:
    effects: tuple[Message, ...] = ()
    for event in events:
        build, effects = step(build, event, 0.0, LIMITS)
    assert build is not None
    return build, effects


def places(build: Build) -> list[Any]:
    was = (PLACED.chosen, *PLACED.alternates)
    return [
        selection.choice.allocations if selection != old else ""
        for selection, old in zip(build.hosts, was, strict=True)
    ]


OTHER = {"numa1": {"VCPU": 1}}
TOLD: dict[str, tuple[list[Event], list[Any]]] = {
    "while it is being built": ([PLACED, told()], [NUMA, "", ""]),
    "when it is active": ([PLACED, BUILT, told()], [NUMA, "", ""]),
    "while its next host is being asked for": ([PLACED, FAILED, told()], [NUMA, "", ""]),
    "while it is being deleted": ([PLACED, BUILT, a_delete(PLACED), told()], [NUMA, "", ""]),
    "on its second host": ([PLACED, FAILED, SWAPPED, told(2, root=ON_HOST1)], ["", NUMA, ""]),
    "twice": ([PLACED, told(), told()], [NUMA, "", ""]),
    "two, in order": ([PLACED, told(), told(number=10, allocations=OTHER)], [OTHER, "", ""]),
    "two, the later first": ([PLACED, told(number=10, allocations=OTHER), told()], [OTHER, "", ""]),
    "of a host it has left": ([PLACED, FAILED, SWAPPED, told()], ["", "", ""]),
    "of a claim whose answer is on its way": ([PLACED, FAILED, told(2, root=ON_HOST1)], ["", NUMA, ""]),
    "of a host it was never placed on": ([PLACED, told(2, root="elsewhere")], ["", "", ""]),
}


@pytest.mark.parametrize("events, then", TOLD.values(), ids=TOLD)
def test_what_it_holds_is_known_from_then_on_and_nothing_is_said(
    events: list[Event], then: list[Any]
) -> None:
    build, effects = after(*events)
    assert places(build) == then
    assert effects == ()
    assert all(not host.choice.shapes for host in build.hosts if host.choice.allocations in (NUMA, OTHER))


def test_what_is_old_changes_nothing_that_is_stored() -> None:
    build, _ = after(PLACED, told())
    assert after(told(), build=build)[0] is build
    gone, _ = after(
        PLACED,
        BUILT,
        a_delete(PLACED),
        an_agent_report(FIRST, "destroyed"),
        ReleaseAnswer("deleting", Released()),
    )
    assert after(told(), build=gone)[0] is gone
    never, _ = after(a_delete(PLACED))
    assert after(told(), build=never)[0] is never


def test_an_order_that_is_said_again_names_what_it_holds_now() -> None:
    for again in (PLACED, Stalled()):
        (order,) = after(PLACED, told(), again)[1]
        assert isinstance(order, BuildOrdered)
        assert (order.attempt, order.allocations) == (1, NUMA)


def test_groups_that_were_served_by_what_moved_are_served_by_what_came() -> None:
    mapped = replace(PLACED, chosen=replace(PLACED.chosen, mappings={"_a": (ON_HOST0,)}))
    build, _ = after(mapped, told())
    assert build.host.mappings == {"_a": ("numa0",)}


def test_its_claim_is_the_same_so_the_next_swap_and_the_next_release_are_fenced_by_it() -> None:
    (_, swap) = after(PLACED, told(), FAILED)[1]
    assert isinstance(swap, ClaimRequested) and swap.claims[0].generation == 1
    (release,) = after(PLACED, BUILT, told(), a_delete(PLACED), an_agent_report(FIRST, "destroyed"))[1]
    assert isinstance(release, ReleaseRequested) and release.generation == 1


@pytest.mark.parametrize("notice", [[], [told(2, root=ON_HOST1)]], ids=["not heard of", "heard of"])
def test_a_swap_that_had_happened_is_recognized_though_its_host_was_reshaped_since(
    notice: list[Event],
) -> None:
    held = Held(generation=2, allocations=NUMA, roots=(ON_HOST1,))
    build, effects = after(PLACED, FAILED, *notice, SwapAnswered(1, held))
    assert (build.status, build.at, build.attempt, build.generation) == ("building", 1, 2, 2)
    assert places(build) == ["", NUMA, ""]
    order = effects[-1]
    assert isinstance(order, BuildOrdered) and (order.attempt, order.allocations) == (2, NUMA)


def test_on_its_own_host_it_is_still_ours_and_the_swap_is_asked_for_again() -> None:
    held = Held(generation=4, allocations=NUMA, roots=(ON_HOST0,))
    build, (swap,) = after(PLACED, FAILED, SwapAnswered(1, held))
    assert places(build) == [NUMA, "", ""]
    assert isinstance(swap, ClaimRequested) and swap.claims[0].generation == 4


def test_held_on_no_host_of_its_own_it_is_given_back() -> None:
    held = Held(generation=4, allocations=NUMA, roots=("elsewhere",))
    _, (release,) = after(PLACED, FAILED, SwapAnswered(1, held))
    assert isinstance(release, ReleaseRequested) and release.generation == 4


def test_a_release_that_meets_a_swap_nobody_heard_of_cleans_the_host_it_left() -> None:
    held = Held(generation=2, allocations=NUMA, roots=(ON_HOST1,))
    cancelled: list[Event] = [PLACED, FAILED, a_delete(PLACED), an_agent_report(FIRST, "destroyed")]
    build, effects = after(*cancelled, ReleaseAnswer("deleting", held))
    assert (build.at, build.attempt, build.generation) == (1, 2, 2)
    assert isinstance(effects[-1], ReleaseRequested) and effects[-1].generation == 2


def test_alternates_chosen_before_their_hosts_were_reshaped_cost_no_attempt_and_are_no_hosts_failure() -> (
    None
):
    moved = Moved(provider=ON_HOST1)
    full = Full(provider="p", resource_class="VCPU", asked=1, free=0)
    taken = Claimed(choice=1, generation=2, number=5, refused=(moved,))
    build, effects = after(PLACED, FAILED, SwapAnswered(1, taken))
    assert [attempt.outcome for attempt in build.attempts] == ["failed", "refused"]
    assert (build.attempt, build.host.host) == (2, "host2")
    assert not [effect for effect in effects if isinstance(effect, HostFailed)]
    build, effects = after(PLACED, FAILED, SwapAnswered(1, Refused(refusals=(moved, full))))
    assert not [effect for effect in effects if isinstance(effect, HostFailed | AgentReported)]
