"""Limits by the metadata of aggregates, and requests with equal alternatives."""

from dataclasses import replace
from typing import Any

import pytest

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.messages import BuildRequested
from bus.requests import Flavor, Hints, Image
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.prefilters import prefilters
from scheduler_worker.core.request import NOBODY, RequestOptions
from scheduler_worker.placing import orders as order_making
from scheduler_worker.placing.orders import Orders
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.rule_builders import alternatives, flavor
from tests.support.scheduler_builders import a_candidate, a_request

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


def test_a_project_without_aggregates_gets_a_note() -> None:
    (alternative,) = alternatives(project="s")
    assert prefilters(CLOUD, TENANTS_ONLY).narrow(alternative).notes == (
        "no aggregate is for project s (filter_tenant_id)",
    )


def test_disabled_cells_are_excluded() -> None:
    (alternative,) = alternatives(cell="c2")
    cells = [RegisteredCell(name=name, enabled=name == "c3") for name in ("c2", "c3", "c1")]
    assert prefilters((), RequestOptions(), cells).narrow(alternative).question.not_cells == ("c1", "c2")
    assert prefilters((), RequestOptions(), cells[1:2]).narrow(alternative) is alternative


GUEST, HOST_ID = uid(7, "e"), uid(1, "c")


REQUESTED = uid(2000, "b")  # the first instance of the second request


def orders() -> Orders:
    return Orders(RecordingSource([a_candidate(1)], {}), RequestOptions(), ChoicePolicy())


@pytest.mark.parametrize(
    ("well", "wrong", "says"),
    [
        (a_request(1, instances=5, at_least=3), a_request(2, instances=2, at_least=3), "at_least"),
        (
            a_request(1, hints=Hints(different_host=(REQUESTED,))),
            a_request(2, hints=Hints(different_host=(REQUESTED,))),
            "different_host",
        ),
    ],
)
def test_an_invalid_request_is_refused_after_an_equal_valid_one(
    well: BuildRequested, wrong: BuildRequested, says: str
) -> None:
    made = orders()
    order = made.begin(well, 0.0)
    assert not order.verdict.invalid
    order = made.begin(wrong, 0.0)
    assert says in order.verdict.invalid


def test_alternatives_of_a_request_contain_nothing_of_its_owner() -> None:
    made = orders()
    order = made.begin(a_request(1, reply_to="me"), 0.0)
    read = order.preferred.request
    assert (read.request, read.instances, read.reply_to) == ("", (), "")
    assert order.request == a_request(1, reply_to="me")


def test_the_cache_of_requests_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_making, "REMEMBERED_BYTES", 100_000)
    made = orders()

    def alternatives(number: int) -> object:
        large = Flavor(name="large", vcpus=1, extra_specs={f"note{n}": f"{number:01000}" for n in range(40)})
        return made.begin(a_request(1, flavor=large), 0.0).attempts

    first = alternatives(1)
    assert alternatives(1) is first
    for number in range(2, 5):
        alternatives(number)
    assert alternatives(1) is not first
