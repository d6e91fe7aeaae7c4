"""The host of existing allocations, by the agents that report the providers."""

import pytest

from bus.claims import Held
from bus.resources import Provider
from scheduler_worker.core.held_claim import SHARES, place_of
from tests.support.ids import uid

ROOT, CHILD, OTHER, POOL = (uid(number, "c") for number in (2, 3, 4, 1))


def a_told_provider(
    id_: str, root: str = "", *, agent: str = "agent", traits: tuple[str, ...] = ()
) -> Provider:
    root = root or id_
    cell, host = ("c1", f"host of {root}") if agent else ("", "")
    return Provider(
        id=id_, name=id_, parent=None if root == id_ else root, root=root, generation=1,
        traits=traits, cell=cell, agent=agent, host=host,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("holds", "providers", "root"),
    [
        pytest.param([ROOT], [a_told_provider(ROOT)], ROOT, id="a flat host"),
        pytest.param(
            [CHILD, OTHER],
            [a_told_provider(CHILD, ROOT), a_told_provider(OTHER, ROOT)],
            ROOT,
            id="children only",
        ),
        pytest.param(
            [ROOT, CHILD], [a_told_provider(ROOT), a_told_provider(CHILD, ROOT)], ROOT, id="root and child"
        ),
        pytest.param(
            [POOL, ROOT],
            [a_told_provider(POOL, agent=""), a_told_provider(ROOT)],
            ROOT,
            id="a pool of the operator's",
        ),
        pytest.param(
            [POOL, CHILD],
            [a_told_provider(POOL, traits=(SHARES,)), a_told_provider(CHILD, ROOT)],
            ROOT,
            id="a pool of an agent's",
        ),
        pytest.param([ROOT], [a_told_provider(ROOT, traits=(SHARES,))], ROOT, id="a host that lends its own"),
        pytest.param([ROOT], [a_told_provider(ROOT, agent="")], None, id="reported by nobody"),
        pytest.param([ROOT], [], None, id="unknown"),
        pytest.param([], [], None, id="nothing"),
    ],
)
def test_place_of(holds: list[str], providers: list[Provider], root: str | None) -> None:
    held = Held(generation=3, allocations={one: {"VCPU": 1} for one in holds})
    place = place_of(held, {provider.id: provider for provider in providers})
    assert (place and place.root) == root
    if place is not None:
        assert (place.host, place.cell, place.agent) == (f"host of {root}", "c1", "agent")
