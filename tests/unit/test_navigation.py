"""The navigation of the control room: five groups of pages, and the page to which a path belongs."""

from collections.abc import Mapping
from typing import get_args

import pytest

from berth.features import features
from bus.feature import NavigationGroup, PageEntry
from control_room.kit.frame import NAVIGATION, grouped, page_at

ADDED: Mapping[str, PageEntry] = {
    "/what-if": PageEntry("What if", "Requests"),
    "/what-if/plans": PageEntry("Plans", "Requests"),
}


def test_groups_have_their_order_and_empty_ones_are_left_out() -> None:
    found = grouped({**NAVIGATION, **ADDED})
    assert list(found) == ["Overview", "Hosts", "Instances", "Requests"]
    assert found["Requests"] == {"/what-if": "What if", "/what-if/plans": "Plans"}
    assert "Requests" not in grouped(NAVIGATION)


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/", "/"),
        ("/hosts/0123", "/hosts"),
        ("/what-if", "/what-if"),
        ("/what-if/plans/7", "/what-if/plans"),
        ("/what-ifs", ""),
        ("/login", ""),
    ],
)
def test_a_path_belongs_to_the_nearest_page_above_it(path: str, page: str) -> None:
    assert page_at({**NAVIGATION, **ADDED}, path) == page


def test_no_page_is_declared_twice_and_each_group_is_known() -> None:
    declared = [NAVIGATION, *(feature.pages for feature in features())]
    addresses = [address for pages in declared for address in pages]
    assert len(addresses) == len(set(addresses))
    assert {entry.group for pages in declared for entry in pages.values()} <= {*get_args(NavigationGroup)}
