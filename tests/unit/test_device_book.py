"""Assignment of devices by an agent, and refusals, by provider."""

import pytest

from bus.reports import Inventory
from bus.vocabulary import Allocations
from compute_sim.core.device_book import DeviceBook
from compute_sim.core.drivers import FlatDriver, PhysicalFunction, SriovDriver, build_tree
from compute_sim.core.provider_tree import child_id
from tests.support.ids import uid

ROOT, OTHER = uid(1, "c"), uid(2, "c")
PF = child_id(ROOT, "h_p0")
FLAT = FlatDriver({"VCPU": Inventory(total=2, reserved=1, allocation_ratio=4.0)})
FOUR_VFS = SriovDriver(functions=(PhysicalFunction(device="p0", vfs=4),))
ONE, TWO = (uid(1, "b"), 1), (uid(2, "b"), 1)


@pytest.fixture
def book() -> DeviceBook:
    book = DeviceBook()
    book.furnish(build_tree(ROOT, "h", [FLAT, FOUR_VFS]))
    return book


WANTED: dict[str, tuple[Allocations, Allocations, str]] = {
    "what there is": ({}, {ROOT: {"VCPU": 4}, PF: {"SRIOV_NET_VF": 4}}, ""),
    "more than the ratio allows": ({}, {ROOT: {"VCPU": 5}}, "h: asked 5 VCPU, 4 free on the host"),
    "a VF, beside another": ({PF: {"SRIOV_NET_VF": 1}}, {PF: {"SRIOV_NET_VF": 1}}, ""),
    "the whole PF, of which a VF is gone": (
        {PF: {"SRIOV_NET_VF": 1}},
        {PF: {"SRIOV_NET_VF": 4}},
        "h_p0: asked 4 SRIOV_NET_VF, 3 free on the host",
    ),
    "a VF of a PF that is gone": (
        {PF: {"SRIOV_NET_VF": 4}},
        {PF: {"SRIOV_NET_VF": 1}},
        "h_p0: asked 1 SRIOV_NET_VF, 0 free on the host",
    ),
    "of others, who share with the host": ({}, {ROOT: {"VCPU": 1}, OTHER: {"DISK_GB": 9999}}, ""),
    "a class of an operator's": ({}, {ROOT: {"CUSTOM_LICENCE": 1}}, ""),
}


@pytest.mark.parametrize("held, wanted, says", WANTED.values(), ids=WANTED.keys())
def test_it_holds_what_there_is_room_for(
    book: DeviceBook, held: Allocations, wanted: Allocations, says: str
) -> None:
    book.hold(ONE, held)
    assert book.refusal(TWO, wanted) == says


def test_what_is_given_back_is_free_and_a_guest_counts_once(book: DeviceBook) -> None:
    whole = {PF: {"SRIOV_NET_VF": 4}}
    for _ in range(2):
        assert book.refusal(ONE, whole) == ""
        book.hold(ONE, whole)
    assert book.in_use(PF) == {"SRIOV_NET_VF": 4}
    for _ in range(2):
        book.release(ONE)
    assert book.in_use(PF) == {}
    assert book.refusal(TWO, whole) == ""


def test_what_was_there_once_is_refused_and_may_come_back(book: DeviceBook) -> None:
    book.furnish(build_tree(ROOT, "h", [FLAT]))
    assert book.refusal(ONE, {PF: {"SRIOV_NET_VF": 1}}) == "h_p0 is not there any more"
    book.furnish(build_tree(ROOT, "h", [FLAT, FOUR_VFS]))
    assert book.refusal(ONE, {PF: {"SRIOV_NET_VF": 1}}) == ""
