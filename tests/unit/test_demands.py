"""Operators of extra specs, and queries over host attributes."""

from dataclasses import replace
from typing import Any

import pytest

from bus.aggregates import Aggregate
from bus.cells import RegisteredCell
from bus.messages import BuildRequested
from bus.requests import Flavor, Hints, Image
from scheduler_worker import ChoicePolicy, placing
from scheduler_worker.core.request import NOBODY, Prefilters, prefilters
from scheduler_worker.core.rule import (
    Attribute,
    RequestOptions,
    UnreadableQuery,
    attribute,
    holds,
    meets,
    parsed,
)
from scheduler_worker.placing import Orders
from tests.support.ids import uid
from tests.support.index_source import RecordingSource
from tests.support.rule_builders import alternatives, flavor, the_facts
from tests.support.scheduler_builders import a_candidate, a_request


@pytest.mark.parametrize(
    ("value", "demand", "met"),
    [
        ("8", "= 8", True),
        ("9", "= 8", True),  # as Nova reads it: at least
        ("7", "= 8", False),
        (8, "== 8.0", True),
        ("8", "!= 8", False),
        ("8", ">= 9", False),
        ("8", "<= 9", True),
        ("eight", ">= 1", False),
        ("8", ">= one", False),
        ("8", ">=", False),
        ("b", "s== b", True),
        ("b", "s!= b", False),
        ("b", "s< c", True),
        ("b", "s<= b", True),
        ("b", "s> a", True),
        ("b", "s>= c", False),
        ("b", "s==", False),
        ("avx2 sse", "<in> avx2", True),
        ("avx2 sse", "<in> avx512", False),
        ("avx2 sse", "<in>", False),
        ("avx2 sse", "<all-in> sse avx2", True),
        ("avx2 sse", "<all-in> sse avx512", False),
        ("avx2 sse", "<all-in>", False),
        ("b", "<or> a <or> b", True),
        ("b", "<or> a <or> c", False),
        ("<or>", "<or> a <or> c", False),
        ("b", "<or>", False),
        ("b", "b", True),
        ("b", "c", False),
        ("b c", "b c", True),
        ("", "", True),
        (8, "8", True),
        (True, "true", True),
        (True, "false", False),
    ],
)
def test_demand(value: object, demand: str, met: bool) -> None:
    assert meets(value, demand) == met


HOST = the_facts(
    architecture="x86_64", instances=2, metrics={"t": 40.0}, capabilities={"cpu_info.arch": "x86_64"}, sent=1
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("free_ram_mb", 8192),
        ("free_disk_mb", 81920),
        ("vcpus_used", 0),
        ("num_io_ops", 1),
        ("num_instances", 2),
        ("architecture", "x86_64"),
        ("host", "host1"),
        ("capabilities:cpu_info:arch", "x86_64"),
        ("capabilities.cpu_info.arch", "x86_64"),
        ("cpu_info:arch", "x86_64"),
        ("metrics.t", 40.0),
        ("metrics:u", None),
        ("luck", None),
    ],
)
def test_attribute(name: str, value: Attribute | None) -> None:
    assert attribute(HOST, name) == value


def test_a_host_without_a_report_has_placements_figures() -> None:
    silent = the_facts()
    assert [attribute(silent, name) for name in ("free_ram_mb", "architecture", "luck")] == [8192, None, None]


@pytest.mark.parametrize(
    ("query", "true"),
    [
        ("[]", True),
        ('[">=", "$free_ram_mb", 8192]', True),
        ('["<", "$free_ram_mb", 8192]', False),
        ('["=", "$architecture", "x86_64"]', True),
        ('["in", "$architecture", "aarch64", "x86_64"]', True),
        ('["in", "$architecture"]', False),
        ('["and", [">", "$free_disk_mb", 1], ["=", "$host", "host2"]]', False),
        ('["or", [">", "$free_disk_mb", 1], ["=", "$host", "host2"]]', True),
        ('["not", ["=", "$host", "host2"]]', True),
        ('["not", ["=", "$host", "host1"]]', False),
        ('["=", "$luck", 1]', False),
        ('["<", "$architecture", 1]', False),  # neither more nor less
        ('["<=", 1, 2, 3]', True),
        ('["<=", 1]', False),
    ],
)
def test_query(query: str, true: bool) -> None:
    assert holds(parsed(query), HOST) == true


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("luck", "it is not JSON"),
        ('"luck"', "it is no list"),
        ('["luck", 1]', "'luck' is no command; there are: =, <, >, <=, >=, in, not, and, or"),
        ('["and", [1]]', "1 is no command"),
        ('["=", {}]', "{} is neither a value nor a list"),
        ("[" * 40 + "]" * 40, "[[[["),
        ('["not", ' * 33 + "1" + "]" * 33, "it is more than 32 lists deep"),
        (f'["and"{", []" * 20}]', "it has 21 lists and 1 values, at most 20 and 200"),
        (f'["in"{", 1" * 200}]', "it has 1 lists and 201 values, at most 20 and 200"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_an_invalid_query_is_refused_with_the_reason(query: str, why: str) -> None:
    with pytest.raises(UnreadableQuery) as refused:
        parsed(query)
    assert why in str(refused.value)


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


@pytest.mark.parametrize("options", [RequestOptions(), TENANTS, ISOLATED])
def test_without_tenant_metadata_an_alternative_is_unchanged(options: RequestOptions) -> None:
    (alternative,) = alternatives()
    assert prefilters([aggregate(ONE, availability_zone="z")], options).narrow(alternative) is alternative
    assert Prefilters().narrow(alternative) is alternative


GUEST, HOST_ID = uid(7, "e"), uid(1, "c")


REQUESTED = uid(2000, "b")  # the first instance of the second request


def orders() -> Orders:
    return Orders(RecordingSource([a_candidate(1)], {}), RequestOptions(), ChoicePolicy())


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({}, {}, True),
        ({}, {"metadata": {"a": "b"}, "user": "you", "reply_to": "me"}, True),
        ({}, {"flavor": Flavor(name="large", vcpus=8)}, False),
        ({}, {"project": "p2"}, False),
    ],
)
def test_requests_with_equal_alternatives(
    one: dict[str, object], other: dict[str, object], alike: bool
) -> None:
    made = orders()
    first = made.begin(a_request(1, **one), 0.0)  # type: ignore[arg-type]
    second = made.begin(a_request(2, **other), 0.0)  # type: ignore[arg-type]
    assert (first.attempts is second.attempts) == alike


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
    monkeypatch.setattr(placing, "REMEMBERED_BYTES", 100_000)
    made = orders()

    def alternatives(number: int) -> object:
        large = Flavor(name="large", vcpus=1, extra_specs={f"note{n}": f"{number:01000}" for n in range(40)})
        return made.begin(a_request(1, flavor=large), 0.0).attempts

    first = alternatives(1)
    assert alternatives(1) is first
    for number in range(2, 5):
        alternatives(number)
    assert alternatives(1) is not first


def test_a_retried_order_uses_the_current_cells() -> None:
    source = RecordingSource([a_candidate(1)], {})
    made = Orders(source, RequestOptions(), ChoicePolicy())
    order = made.begin(a_request(1), 0.0)
    for enabled in (False, True):
        source.memory.index.cell_facts = {"c1": RegisteredCell(name="c1", enabled=enabled)}
        made._received((), ("c1",))
        closed = () if enabled else ("c1",)
        order = made.again(order)
        assert order.alternative.question.not_cells == closed
        assert made.begin(a_request(2), 0.0).alternative.question.not_cells == closed
