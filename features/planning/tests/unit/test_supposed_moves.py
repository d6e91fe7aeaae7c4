"""What-if questions about moves."""

import pytest
from msgspec.structs import replace

from bus.requests import Flavor, Image
from features.moves.messages import MoveRequested
from features.moves.tests.support.move_builders import BUILD, a_move
from features.moves.tests.support.moving_clouds import a_cloud, shelved
from features.planning.tests.support.supposing import supposed, where
from tests.support.ids import uid

REFUSED = [
    ("nobody fits", a_move(1, "resize", flavor=Flavor(name="huge", vcpus=99)), "class", ""),
    ("unknown", a_move(build=uid(4, "b")), "unknown", "does not know of such a build"),
    ("it is there", a_move(wanted_host="host1"), "same_host", "it is on host1 already"),
    ("not fenced", a_move(1, "evacuate"), "not_fenced", "`berth host force-down host1`"),
    ("no such host", a_move(wanted_host="nix"), "unreadable", "there is no host 'nix'"),
    ("no flavor", a_move(1, "resize"), "unreadable", "flavor: a resize requires"),
]


@pytest.mark.parametrize(("move", "code", "why"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED])
async def test_a_what_if_has_the_refusal_of_the_move(move: MoveRequested, code: str, why: str) -> None:
    cloud = a_cloud()
    [answer] = await supposed(cloud, move)
    assert (answer.fits, answer.decision.code) == (False, code)
    assert why in answer.refusal and bool(answer.refusal) == bool(why)
    assert cloud.placement.retired == {}
    assert (await cloud.refused(move)).code == code


async def test_a_what_if_uses_no_host_to_be_disabled() -> None:
    cloud = a_cloud(hosts=3)
    assert where(await supposed(cloud, a_move(), closed=(1, 2))) == ["host3"]
    [nowhere] = await supposed(cloud, a_move(), closed=(1, 2, 3))
    assert not nowhere.fits


async def test_moves_without_a_host_are_judged_as_well() -> None:
    cloud = a_cloud()
    [shelve, rebuild] = await supposed(
        cloud, a_move(1, "shelve"), a_move(2, "rebuild", image=Image(name="i"))
    )
    assert (shelve.fits, shelve.placed) == (True, ())
    assert (rebuild.fits, rebuild.placed[0].host) == (True, "host1")
    shelved(cloud)
    stands = cloud.cells.stands["cell1"][BUILD]
    assert where(await supposed(cloud, a_move(1, "unshelve"))) != []
    cloud.cells.know(replace(stands, move=a_move(3).move))
    [started] = await supposed(cloud, a_move(3))
    assert not started.fits and started.refusal == "it has started before, and its cell sees it through"
