"""Constraints from aggregates' metadata that are added before the search."""

from dataclasses import replace
from typing import Any

import pytest

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.requests import Image
from scheduler_worker.core.extra_specs import RequestOptions
from scheduler_worker.core.request import NOBODY, Prefilters, prefilters
from tests.support.alternatives import alternatives, flavor
from tests.support.ids import uid

ONE, TWO, THREE = (uid(number, "e") for number in (1, 2, 3))


def aggregate(uuid: str, **metadata: str) -> Aggregate:
    return Aggregate(id=uuid, metadata={key.replace("__", ":"): value for key, value in metadata.items()})


CLOUD = (
    aggregate(ONE, filter_tenant_id="p", trait__CUSTOM_LICENSED="required"),
    aggregate(TWO, filter_tenant_id="q, r", filter_tenant_id_2="p", trait__A="forbidden"),
    aggregate(THREE, availability_zone="z", trait__A="required", trait__B="required"),
)
TENANTS = RequestOptions(tenant_aggregates=True)
TENANTS_ONLY = replace(TENANTS, tenant_aggregates_required=True)
ISOLATED = RequestOptions(isolate_aggregates=True)
LICENSED = {"trait:CUSTOM_LICENSED": "required"}


@pytest.mark.parametrize(
    ("options", "request_fields", "member_of", "not_member_of"),
    [
        (RequestOptions(), {"project": "p"}, (), ()),  # both are off, as in Nova
        (TENANTS, {"project": "p"}, ((ONE, TWO),), ()),
        (TENANTS, {"project": "r"}, ((TWO,),), ()),
        (TENANTS, {"project": "s"}, (), ()),
        (TENANTS, {"project": "r", "aggregates": ((THREE,),)}, ((THREE,), (TWO,)), ()),
        (TENANTS_ONLY, {"project": "r"}, ((TWO,),), ()),
        (TENANTS_ONLY, {"project": "s"}, ((NOBODY,),), ()),
        (ISOLATED, {"project": "p"}, (), (ONE, THREE)),
        (ISOLATED, {"flavor": flavor(LICENSED)}, (), (THREE,)),
        (ISOLATED, {"image": Image(name="i", traits_required=("A", "B"))}, (), (ONE,)),
        (ISOLATED, {"flavor": flavor({"resources1:VGPU": "1", "trait1:A": "required"})}, (), (ONE, THREE)),
        (
            ISOLATED,
            {
                "flavor": flavor({"resources1:VGPU": "1", "trait1:A": "required", "trait:B": "required"}),
                "not_aggregates": (TWO,),
            },
            (),
            (TWO, ONE),
        ),
    ],
)
def test_constraints_from_aggregates(
    options: RequestOptions,
    request_fields: dict[str, Any],
    member_of: tuple[tuple[str, ...], ...],
    not_member_of: tuple[str, ...],
) -> None:
    (alternative,) = alternatives(**request_fields)
    question = prefilters(CLOUD, options).narrow(alternative).question
    assert (question.root_member_of, question.root_not_member_of) == (member_of, not_member_of)


def test_a_project_without_hosts_is_told_so() -> None:
    (alternative,) = alternatives(project="s")
    assert prefilters(CLOUD, TENANTS_ONLY).narrow(alternative).notes == (
        "no aggregate is for project s (filter_tenant_id)",
    )


def test_disabled_cells_are_excluded() -> None:
    (alternative,) = alternatives(cell="c2")
    cells = [RegisteredCell(name=name, enabled=name == "c3") for name in ("c2", "c3", "c1")]
    assert prefilters((), RequestOptions(), cells).narrow(alternative).question.not_cells == ("c1", "c2")
    assert prefilters((), RequestOptions(), cells[1:2]).narrow(alternative) is alternative


@pytest.mark.parametrize("options", [RequestOptions(), TENANTS, ISOLATED])
def test_without_such_metadata_a_wish_stays_the_one_it_was(options: RequestOptions) -> None:
    (alternative,) = alternatives()
    assert prefilters([aggregate(ONE, availability_zone="z")], options).narrow(alternative) is alternative
    assert Prefilters().narrow(alternative) is alternative
