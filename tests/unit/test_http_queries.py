"""Query strings of the HTTP API by microversion, and errors for wrong ones."""

import json
import random
from typing import Any

import msgspec
import pytest

from bus.names import FindNames
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.resources import FindProviders, FindUsages
from placement_worker.http import queries, schemas
from placement_worker.http.api_call import negotiated
from placement_worker.http.errors import UNDEFINED, Problem, best, takes_json
from placement_worker.http.schemas import Schema

A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"


def asked(query: str, minor: int = 39) -> FindCandidates:
    return queries.candidates(query.encode(), minor).query


def group_of(query: str, minor: int = 39) -> ResourceGroup:
    [group] = asked(query, minor).groups
    return group


def test_a_plain_query_asks_for_all_candidates() -> None:
    assert asked("resources=VCPU:1,MEMORY_MB:512") == FindCandidates(
        groups=(ResourceGroup(resources={"VCPU": 1, "MEMORY_MB": 512}),),
        limit=queries.MOST_CANDIDATES,
        per_host=0,
    )


@pytest.mark.parametrize(
    ("query", "minor", "is_"),
    [
        ("resources=VCPU:1,VCPU:3", 39, {"resources": {"VCPU": 3}}),
        ("resources=VCPU:1&resources=DISK_GB:2", 39, {"resources": {"DISK_GB": 2}}),
        ("resources=VCPU:%2B1", 39, {"resources": {"VCPU": 1}}),
        ("resources=VCPU:99999999999999999999", 39, {"resources": {"VCPU": 2**31}}),
        ("resources=VCPU:1&required=T,U", 17, {"required": ("T", "U")}),
        ("resources=VCPU:1&required=T,!U", 22, {"required": ("T",), "forbidden": ("U",)}),
        ("resources=VCPU:1&required=!!!U", 22, {"forbidden": ("U",)}),
        ("resources=VCPU:1%20&required=%20T,%20!U%20", 22, {"required": ("T",), "forbidden": ("U",)}),
        ("resources=VCPU:1&required=in:T,%20U%20", 39, {"required_any": (("T", "U"),)}),
        (f"resources=VCPU:1&in_tree={A}%20", 31, {"in_tree": A}),
        ("resources=VCPU:1&required=T&required=U", 38, {"required": ("U",)}),
        ("resources=VCPU:1&required=T&required=U", 39, {"required": ("T", "U")}),
        ("resources=VCPU:1&required=in:T,U&required=!V&required=in:W", 39,
         {"required_any": (("T", "U"), ("W",)), "forbidden": ("V",)}),
        (f"resources=VCPU:1&member_of={A}", 21, {"member_of": ((A,),)}),
        (f"resources=VCPU:1&member_of=in:{A},{B}", 21, {"member_of": ((A, B),)}),
        (f"resources=VCPU:1&member_of={A}&member_of=in:{B}", 24, {"member_of": ((A,), (B,))}),
        (f"resources=VCPU:1&member_of={A}&member_of=!{B}", 32, {"member_of": ((A,),), "not_member_of": (B,)}),
        (f"resources=VCPU:1&member_of=!in:{A},{B}", 32, {"not_member_of": (A, B)}),
        (f"resources=VCPU:1&member_of={A.replace('-', '').upper()}", 21,
         {"member_of": ((A.replace("-", "").upper(),),)}),
        (f"resources=VCPU:1&in_tree={A}", 31, {"in_tree": A}),
        ("resources1=VCPU:1", 25, {"suffix": "1"}),
        ("resources_x-Y=VCPU:1", 33, {"suffix": "_x-Y"}),
        (f"resources_N=VCPU:1&required_N=T&in_tree_N={A}", 33,
         {"suffix": "_N", "required": ("T",), "in_tree": A}),
    ],
)  # fmt: skip
def test_parameters_of_a_request_group(query: str, minor: int, is_: dict[str, Any]) -> None:
    group = group_of(query, minor)
    assert {name: getattr(group, name) for name in is_} == is_


def test_groups_come_in_the_order_of_the_query() -> None:
    found = asked("required2=T&resources=VCPU:1&resources_9=VCPU:2&resources2=VCPU:3&group_policy=isolate")
    assert [group.suffix for group in found.groups] == ["2", "", "_9"]
    assert found.group_policy == "isolate"


@pytest.mark.parametrize(
    ("query", "limit"), [("limit=7", 7), ("limit=7&limit=8", 7), ("limit=" + "9" * 30, 100_000)]
)
def test_the_limit_of_candidates(query: str, limit: int) -> None:
    assert asked(f"resources=VCPU:1&{query}", 16).limit == limit


def test_same_subtree_and_root_traits() -> None:
    found = asked(
        "resources1=VCPU:1&required_X=T&same_subtree=1,_X,1&same_subtree=_X&group_policy=none&root_required=R,!S"
    )
    assert found.same_subtree == (("1", "_X"), ("_X",))
    assert (found.root_required, found.root_forbidden) == (("R",), ("S",))


@pytest.mark.parametrize(("minor", "nested"), [(10, False), (28, False), (29, True), (39, True)])
def test_before_1_29_trees_are_not_known(minor: int, nested: bool) -> None:
    assert asked("resources=VCPU:1", minor).nested is nested


def test_classes_and_traits_that_must_exist() -> None:
    wanted = queries.candidates(
        b"resources=VCPU:1&resources1=X:1&required1=T,!U,&required=in:V".replace(b",&", b"&"), 39
    )
    assert wanted.classes == {"VCPU", "X"}
    assert wanted.traits == {"T", "U", "V"}


# The published tests of Placement have most errors of queries; these they do not have.
@pytest.mark.parametrize(
    ("query", "minor", "why"),
    [
        ("resources=VCPU:1&resources01=VCPU:1", 25, "'resources01' does not match any of the regexes"),
        ("resources=VCPU:1&required=!", 22, "Got an empty trait in: !"),
        ("resources=VCPU:1&root_required=in:T", 39, "only supported since microversion 1.39. Got: in:T"),
        ("resources1=VCPU:1&required1=in:T,U&required1=!T,!U", 39, "required1: (T, U)"),
        (f"resources=VCPU:1&member_of=in:{A},!{B}", 32, "to contain valid UUID(s). Got: !" + B),
        (f"resources=VCPU:1&in_tree1={A}", 31, "All request groups must specify resources."),
        ("&".join(f"resources{n}=VCPU:1" for n in range(1, 102)), 39, "at most 100 request groups, not 101"),
        ("&".join(["resources=VCPU:1"] * 1001), 39, "there are more than 1000"),
        ("resources=VCPU%00:1", 10, "U+0000"),
    ],
)
def test_an_invalid_query_is_refused_with_the_reason(query: str, minor: int, why: str) -> None:
    with pytest.raises(Problem) as refusal:
        asked(query, minor)
    assert (refusal.value.status, refusal.value.code) == (400, UNDEFINED)
    assert why in refusal.value.why


# Providers


@pytest.mark.parametrize(
    ("query", "minor", "wanted"),
    [
        ("", 0, FindProviders(parts=())),
        ("name=n", 0, FindProviders(name="n", parts=())),
        ("name=n&name=m", 0, FindProviders(name="m", parts=())),
        (f"uuid={A}", 0, FindProviders(ids=(A,), parts=())),
        (f"in_tree={A}", 14, FindProviders(in_tree=A, parts=())),
        ("resources=VCPU:1", 4, FindProviders(like=ResourceGroup(resources={"VCPU": 1}), parts=())),
        ("required=T,!U", 22, FindProviders(like=ResourceGroup(required=("T",), forbidden=("U",)), parts=())),
        ("required=T,!T", 22, FindProviders(like=ResourceGroup(required=("T",), forbidden=("T",)), parts=())),
        (f"member_of=in:{A},{B}", 3, FindProviders(like=ResourceGroup(member_of=((A, B),)), parts=())),
    ],
)
def test_queries_for_providers(query: str, minor: int, wanted: FindProviders) -> None:
    assert queries.providers(query.encode(), minor).query == wanted


# Traits and usages


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", FindNames(kind="trait")),
        ("name=in:A,B", FindNames(kind="trait", names=("A", "B"))),
        ("name=startswith:CUSTOM_", FindNames(kind="trait", prefix="CUSTOM_")),
        ("name=whatever:A", FindNames(kind="trait")),
        ("associated=TRUE", FindNames(kind="trait", associated=True)),
        ("name=in:A&associated=false", FindNames(kind="trait", names=("A",), associated=False)),
    ],
)
def test_queries_for_traits(query: str, wanted: FindNames) -> None:
    assert queries.traits(query.encode()) == wanted


@pytest.mark.parametrize(
    ("query", "minor", "wanted"),
    [
        ("project_id=p", 9, (FindUsages(project="p"), "")),
        ("project_id=p&user_id=u", 9, (FindUsages(project="p", user="u"), "")),
        ("project_id=p&consumer_type=INSTANCE", 38, (FindUsages(project="p"), "INSTANCE")),
        ("project_id=p&consumer_type=all", 38, (FindUsages(project="p"), "all")),
    ],
)
def test_queries_for_usages(query: str, minor: int, wanted: tuple[FindUsages, str]) -> None:
    assert queries.usages(query.encode(), minor) == wanted


@pytest.mark.parametrize(
    ("header", "minor"),
    [
        ("", 0),
        ("placement 1.0", 0),
        ("placement 1.39", 39),
        ("placement latest", 39),
        ("Placement latest", 39),
        ("compute 2.1", 0),
        ("compute 2.1, placement 1.7", 7),
        ("placement 1.3,placement 1.5", 5),
        ("placement  1.5", 5),
        ("placement", 0),
    ],
)
def test_a_header_asks_for_a_version(header: str, minor: int) -> None:
    assert negotiated(header) == minor


@pytest.mark.parametrize(
    ("header", "status", "why"),
    [
        ("placement 0.5", 406, "Unacceptable version header: 0.5"),
        ("placement 1.40", 406, "Unacceptable version header: 1.40"),
        ("placement 2.0", 406, "Unacceptable version header: 2.0"),
        ("placement pony.horse", 400, "invalid version string: pony.horse"),
        ("placement 1.2.3", 400, "invalid version string: 1.2.3"),
        ("placement LATEST", 400, "invalid version string: LATEST"),
        ("placement 1", 400, "invalid version string: 1"),
        ("placement 1.-1", 400, "invalid version string: 1.-1"),
        ("placement 1.١", 400, "invalid version string"),
    ],
)
def test_an_invalid_version_is_refused(header: str, status: int, why: str) -> None:
    with pytest.raises(Problem) as refusal:
        negotiated(header)
    assert refusal.value.status == status
    assert why in refusal.value.why


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "json_is_good", "errors_as"),
    [
        ("", True, "application/json"),
        ("*/*", True, "application/json"),
        ("application/json", True, "application/json"),
        ("application/*", True, "application/json"),
        ("application/json; charset=utf-8", True, "application/json"),
        ("text/html", False, "text/html"),
        ("text/*", False, "text/html"),
        (BROWSER, True, "text/html"),
        ("text/html;q=0.5, application/json", True, "application/json"),
        ("application/json;q=0, */*", False, "text/html"),
        ("application/json;q=0", False, None),
        ("text/plain", False, None),
        ("application/xml", False, None),
        ("*/*;q=x", False, None),
    ],
)
def test_accepted_content_types(accept: str, json_is_good: bool, errors_as: str | None) -> None:
    assert takes_json(accept) is json_is_good
    assert best(accept) == errors_as


def test_in_html_nothing_of_the_client_is_markup() -> None:
    kind, body = Problem(400, "<script>alert(1)</script>").rendered("text/html", "req-1", 0)
    assert kind == "text/html; charset=UTF-8"
    assert b"<script>" not in body
    assert b"&lt;script&gt;" in body


def test_error_messages_have_a_bounded_length() -> None:
    assert len(Problem(400, "x" * 1_000_000).rendered("", "req-1", 0)[1]) < 5000


UUID = "aaaaaaaa-0000-0000-0000-000000000001"
CLAIM = {
    "allocations": {UUID: {"resources": {"VCPU": 1}, "generation": 3}},
    "project_id": "p1",
    "user_id": "u1",
    "consumer_generation": None,
    "mappings": {"_A": [UUID]},
    "consumer_type": "INSTANCE",
}
SOUND: list[tuple[Schema, Any]] = [
    (schemas.PUT_ALLOCATIONS[38], CLAIM),
    (schemas.POST_ALLOCATIONS[38], {UUID: CLAIM}),
]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**31 - 1, 1.0, 1.5, 1e39, -0.5, "", "x" * 300, "vcpu", "VCPU\n",
    UUID.upper(), UUID.replace("-", ""), UUID + "\n", [], [UUID], ["A", "A"], {}, {"VCPU": 1}, {"": {}},
    10**30,
]  # fmt: skip


def spoilt(value: Any, chance: random.Random) -> Any:
    value = json.loads(json.dumps(value))
    if not isinstance(value, dict | list) or not value or chance.random() < 0.15:
        return chance.choice(ODD)
    if isinstance(value, list):
        value[chance.randrange(len(value))] = chance.choice(ODD)
        return value
    key = chance.choice(sorted(value))
    match chance.randrange(5):
        case 0:
            del value[key]
        case 1:
            value[chance.choice(("", "bogus", "vcpu", "VCPU\n", UUID.upper(), key + "\n"))] = value[key]
        case _:
            value[key] = spoilt(value[key], chance)
    return value


@pytest.mark.parametrize(("schema", "sound"), SOUND)
def test_the_plain_type_accepts_only_what_the_schema_accepts(schema: Schema, sound: Any) -> None:
    plain = schema._plain
    assert plain is not None
    plain.decode(json.dumps(sound).encode())
    assert schema.complaint(sound) == ""
    chance, refused = random.Random(7), 0
    for _ in range(1500):
        body = spoilt(sound, chance)
        try:
            plain.decode(json.dumps(body).encode())
        except msgspec.ValidationError:
            refused += 1
            continue
        assert schema.complaint(body) == "", body
    assert refused > 300
