"""Query strings of the HTTP API by microversion, and errors for wrong ones."""

import json
import random
from typing import Any

import msgspec
import pytest

from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from placement_worker.http import queries, schemas
from placement_worker.http.errors import UNDEFINED, Problem, best, takes_json
from placement_worker.http.schemas import Schema

A, B = "aaaaaaaa-0000-4000-8000-000000000000", "bbbbbbbb-0000-4000-8000-000000000000"


def asked(query: str, minor: int = 39) -> FindCandidates:
    return queries.candidates(query.encode(), minor)


def group_of(query: str, minor: int = 39) -> ResourceGroup:
    [group] = asked(query, minor).groups
    return group


@pytest.mark.parametrize(
    ("query", "minor", "is_"),
    [
        ("resources=VCPU:1,VCPU:3", 39, {"resources": {"VCPU": 3}}),
        ("resources=VCPU:1&resources=DISK_GB:2", 39, {"resources": {"DISK_GB": 2}}),
        ("resources=VCPU:%2B1", 39, {"resources": {"VCPU": 1}}),
        ("resources=VCPU:99999999999999999999", 39, {"resources": {"VCPU": 2**31}}),
        ("resources=VCPU:1&required=!!!U", 22, {"forbidden": ("U",)}),
        ("resources=VCPU:1%20&required=%20T,%20!U%20", 22, {"required": ("T",), "forbidden": ("U",)}),
        ("resources=VCPU:1&required=in:T,%20U%20", 39, {"required_any": (("T", "U"),)}),
        (f"resources=VCPU:1&in_tree={A}%20", 31, {"in_tree": A}),
        (f"resources=VCPU:1&member_of={A.replace('-', '').upper()}", 21,
         {"member_of": ((A.replace("-", "").upper(),),)}),
    ],
)  # fmt: skip
def test_parameters_of_a_request_group(query: str, minor: int, is_: dict[str, Any]) -> None:
    group = group_of(query, minor)
    assert {name: getattr(group, name) for name in is_} == is_


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
