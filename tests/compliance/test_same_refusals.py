"""Every refusal of the API, from berth and from OpenStack Placement: status, title, code and message are
equal.

Clients match on messages. Not compared: which of two errors in one request is reported, and the form of a
401.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.compliance.api import PlacementApi, empty

ROOT, CHILD, OTHER, NOBODY = (str(uuid.UUID(int=number)) for number in (1, 2, 3, 99))
CONSUMER, NEWCOMER = str(uuid.UUID(int=11)), str(uuid.UUID(int=12))
AGGREGATE = str(uuid.UUID(int=21))
RP = "/resource_providers"
CANDIDATES = "/allocation_candidates?"


@dataclass(frozen=True)
class Ill:
    says: str  # what is wrong with it
    method: str
    path: str
    body: Any = None
    minor: int = 39
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # the body as it is sent


def claim(*shares: tuple[str, dict[str, int]], generation: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "allocations": {provider: {"resources": resources} for provider, resources in shares},
        "project_id": "p", "user_id": "u", "consumer_generation": generation, "consumer_type": "INSTANCE",
    } | more  # fmt: skip


def older(minor: int, *shares: tuple[str, dict[str, int]]) -> dict[str, Any]:
    if minor < 12:
        listed = [{"resource_provider": {"uuid": by}, "resources": held} for by, held in shares]
        body: dict[str, Any] = {"allocations": listed}
    else:
        body = {"allocations": {by: {"resources": held} for by, held in shares}}
    return body | ({"project_id": "p", "user_id": "u"} if minor >= 8 else {})


def stocks(generation: int, **inventories: dict[str, Any]) -> dict[str, Any]:
    return {"resource_provider_generation": generation, "inventories": inventories}


def reshaped(provider: str, generation: int, claims: dict[str, Any], **inventories: Any) -> dict[str, Any]:
    return {"inventories": {provider: stocks(generation, **inventories)}, "allocations": claims}


TOTAL = {"total": 8}
G = 3  # the generation ROOT has

ROWS = (
    # addresses, methods, versions, heads
    Ill("no such address", "GET", "/nowhere"),
    Ill("a method it has not", "PATCH", RP),
    Ill("version too old", "GET", "/usages?project_id=p", minor=8),
    Ill("version too old to delete all inventories", "DELETE", f"{RP}/{ROOT}/inventories", minor=4),
    Ill("a version that is none", "GET", RP, headers={"openstack-api-version": "placement x"}),
    Ill("a version to come", "GET", RP, headers={"openstack-api-version": "placement 1.999"}),
    Ill("not allowed", "GET", RP, headers={"x-auth-token": "user"}),
    Ill("takes nothing there is", "GET", RP, headers={"accept": "text/plain"}),
    Ill("text where JSON is wanted", "POST", RP, raw=b"name", headers={"content-type": "text/plain"}),
    Ill("no content at all", "POST", RP, raw=b"", headers={"content-type": ""}),
    Ill("no JSON", "POST", RP, raw=b"{x"),
    # providers
    Ill("no name", "POST", RP, {}),
    Ill("a name of nothing", "POST", RP, {"name": "", "uuid": NOBODY}),
    Ill("a name that is taken", "POST", RP, {"name": "root", "uuid": NOBODY}),
    Ill("a uuid that is taken", "POST", RP, {"name": "n", "uuid": ROOT}),
    Ill("no such parent", "POST", RP, {"name": "n", "uuid": NOBODY, "parent_provider_uuid": NEWCOMER}),
    Ill("its own parent", "POST", RP, {"name": "n", "uuid": NOBODY, "parent_provider_uuid": NOBODY}),
    Ill("no such provider", "GET", f"{RP}/{NOBODY}"),
    Ill("renamed to a name that is taken", "PUT", f"{RP}/{ROOT}", {"name": "other"}),
    Ill("moved under nobody", "PUT", f"{RP}/{CHILD}", {"name": "child", "parent_provider_uuid": NOBODY}),
    Ill("moved in a circle", "PUT", f"{RP}/{ROOT}", {"name": "root", "parent_provider_uuid": CHILD}),
    Ill("moved before it could be", "PUT", f"{RP}/{CHILD}",
        {"name": "child", "parent_provider_uuid": OTHER}, minor=36),
    Ill("cut off before it could be", "PUT", f"{RP}/{CHILD}",
        {"name": "child", "parent_provider_uuid": None}, minor=36),
    Ill("no such provider to delete", "DELETE", f"{RP}/{NOBODY}"),
    Ill("has children", "DELETE", f"{RP}/{OTHER}"),
    Ill("has allocations", "DELETE", f"{RP}/{CHILD}"),
    Ill("a parameter nobody knows", "GET", f"{RP}?colour=red"),
    Ill("no such class, asked for", "GET", f"{RP}?resources=COW:1"),
    Ill("no such trait, asked for", "GET", f"{RP}?required=CUSTOM_NOT"),
    Ill("resources of nothing", "GET", f"{RP}?resources="),
    Ill("resources without an amount", "GET", f"{RP}?resources=VCPU"),
    Ill("an amount of nothing", "GET", f"{RP}?resources=VCPU:0"),
    Ill("an empty trait among others", "GET", f"{RP}?required=CUSTOM_USED,,CUSTOM_FREE"),
    Ill("a forbidden trait before there were any", "GET", f"{RP}?required=!CUSTOM_USED", minor=21),
    Ill("any of some before it could be", "GET", f"{RP}?required=in:CUSTOM_USED", minor=38),
    Ill("any of nothing", "GET", f"{RP}?required=in:"),
    Ill("any of forbidden ones", "GET", f"{RP}?required=in:!CUSTOM_USED"),
    Ill("member of what is no uuid", "GET", f"{RP}?member_of=x"),
    Ill("member of two without in:", "GET", f"{RP}?member_of={AGGREGATE},{AGGREGATE}"),
    Ill("member of several before it could be", "GET", f"{RP}?member_of={AGGREGATE}&member_of={OTHER}",
        minor=23),
    Ill("no member before it could be", "GET", f"{RP}?member_of=!{AGGREGATE}", minor=31),
    # inventories, usages, aggregates, traits of a provider
    Ill("no inventory of it", "GET", f"{RP}/{ROOT}/inventories/VGPU"),
    Ill("no inventory of a class nobody knows", "GET", f"{RP}/{ROOT}/inventories/COW"),
    Ill("a stale generation", "PUT", f"{RP}/{ROOT}/inventories", stocks(99, VCPU=TOTAL)),
    Ill("leaves out what is in use", "PUT", f"{RP}/{ROOT}/inventories", stocks(G, MEMORY_MB=TOTAL)),
    Ill("an inventory of a class nobody knows", "PUT", f"{RP}/{ROOT}/inventories",
        stocks(G, VCPU=TOTAL, MEMORY_MB=TOTAL, COW=TOTAL)),
    Ill("more reserved than there is", "PUT", f"{RP}/{ROOT}/inventories",
        stocks(G, VCPU={"total": 8, "reserved": 9}, MEMORY_MB=TOTAL)),
    Ill("all reserved before it could be", "PUT", f"{RP}/{ROOT}/inventories",
        stocks(G, VCPU={"total": 8, "reserved": 8}, MEMORY_MB=TOTAL), minor=25),
    Ill("one more that is there", "POST", f"{RP}/{ROOT}/inventories", {"resource_class": "VCPU", "total": 8}),
    Ill("one more of a class nobody knows", "POST", f"{RP}/{ROOT}/inventories",
        {"resource_class": "COW", "total": 8}),
    Ill("one more, too much reserved", "POST", f"{RP}/{ROOT}/inventories",
        {"resource_class": "VGPU", "total": 8, "reserved": 9}),
    Ill("one changed, stale", "PUT", f"{RP}/{ROOT}/inventories/VCPU",
        {"resource_provider_generation": 99, "total": 8}),
    Ill("one changed that is not there", "PUT", f"{RP}/{ROOT}/inventories/VGPU",
        {"resource_provider_generation": G, "total": 8}),
    Ill("one changed of a class nobody knows", "PUT", f"{RP}/{ROOT}/inventories/COW",
        {"resource_provider_generation": G, "total": 8}),
    Ill("one changed, too much reserved", "PUT", f"{RP}/{ROOT}/inventories/VCPU",
        {"resource_provider_generation": G, "total": 8, "reserved": 9}),
    Ill("one deleted that is not there", "DELETE", f"{RP}/{ROOT}/inventories/VGPU"),
    Ill("one deleted that is in use", "DELETE", f"{RP}/{ROOT}/inventories/VCPU"),
    Ill("all deleted while in use", "DELETE", f"{RP}/{CHILD}/inventories"),
    Ill("aggregates, stale", "PUT", f"{RP}/{ROOT}/aggregates",
        {"resource_provider_generation": 99, "aggregates": []}),
    Ill("an aggregate twice", "PUT", f"{RP}/{ROOT}/aggregates", [AGGREGATE, AGGREGATE], minor=18),
    Ill("traits, stale", "PUT", f"{RP}/{ROOT}/traits", {"resource_provider_generation": 99, "traits": []}),
    Ill("a trait nobody knows", "PUT", f"{RP}/{ROOT}/traits",
        {"resource_provider_generation": G, "traits": ["CUSTOM_NOT"]}),
    Ill("allocations of nobody's", "GET", f"{RP}/{NOBODY}/allocations"),
    # classes and traits
    Ill("no such class", "GET", "/resource_classes/CUSTOM_NOT"),
    Ill("a class that is there", "POST", "/resource_classes", {"name": "CUSTOM_USED"}),
    Ill("a class not ours to name", "POST", "/resource_classes", {"name": "COW"}),
    Ill("a class renamed to one that is there", "PUT", "/resource_classes/CUSTOM_FREE",
        {"name": "CUSTOM_USED"}, minor=6),
    Ill("a class renamed that is not there", "PUT", "/resource_classes/CUSTOM_NOT",
        {"name": "CUSTOM_NEW"}, minor=6),
    Ill("a standard class renamed", "PUT", "/resource_classes/VCPU", {"name": "CUSTOM_NEW"}, minor=6),
    Ill("a class deleted that is not there", "DELETE", "/resource_classes/CUSTOM_NOT"),
    Ill("a standard class deleted", "DELETE", "/resource_classes/VCPU"),
    Ill("a class deleted that is in use", "DELETE", "/resource_classes/CUSTOM_USED"),
    Ill("no such trait", "GET", "/traits/CUSTOM_NOT"),
    Ill("a trait that is not custom", "PUT", "/traits/COW"),
    Ill("a standard trait deleted", "DELETE", "/traits/HW_CPU_X86_AVX"),
    Ill("a trait deleted that is in use", "DELETE", "/traits/CUSTOM_USED"),
    Ill("traits by a name of no form", "GET", "/traits?name=CUSTOM_USED"),
    Ill("traits associated or not", "GET", "/traits?associated=maybe"),
    # candidates
    *(Ill(says, "GET", CANDIDATES + query, minor=minor) for says, query, minor in (
        ("nothing asked for", "", 39),
        ("only a limit", "limit=1", 28),
        ("no such class to choose", "resources=COW:1", 39),
        ("no such trait to choose", "resources=VCPU:1&required=CUSTOM_NOT", 39),
        ("no such root trait", "resources=VCPU:1&root_required=CUSTOM_NOT", 39),
        ("a group policy nobody knows", "resources=VCPU:1&group_policy=x", 39),
        ("no group policy", "resources1=VCPU:1&resources2=VCPU:1", 39),
        ("a trait wanted and forbidden", "resources=VCPU:1&required=CUSTOM_USED,!CUSTOM_USED", 38),
        ("a trait wanted and forbidden at once",
         "resources=VCPU:1&required=CUSTOM_USED&required=!CUSTOM_USED", 39),
        ("any of what is forbidden", "resources1=VCPU:1&required1=in:CUSTOM_USED,CUSTOM_FREE"
         "&required1=!CUSTOM_USED,!CUSTOM_FREE", 39),
        ("in a tree that is none", "resources=VCPU:1&in_tree=x", 39),
        ("orphaned traits", "resources=VCPU:1&required1=CUSTOM_USED", 35),
        ("only resourceless groups", "required1=CUSTOM_USED&same_subtree=1", 39),
        ("a subtree of nobody", "resources=VCPU:1&same_subtree=_A", 39),
        ("a subtree of the unsuffixed", "resources1=VCPU:1&same_subtree=,1", 39),
        ("roots twice", "resources=VCPU:1&root_required=CUSTOM_USED&root_required=CUSTOM_FREE", 39),
        ("roots torn", "resources=VCPU:1&root_required=CUSTOM_USED,!CUSTOM_USED", 39),
        ("roots of any", "resources=VCPU:1&root_required=in:CUSTOM_USED", 39),
        ("a suffix before it could be", "resources_A=VCPU:1", 32),
        ("groups before they could be", "resources=VCPU:1&resources1=VCPU:1", 24),
    )),
    # allocations
    Ill("a consumer that is no uuid", "PUT", "/allocations/x", claim((ROOT, {"VCPU": 1}))),
    Ill("nobody's to delete", "DELETE", f"/allocations/{NEWCOMER}"),
    Ill("a new consumer with a generation", "PUT", f"/allocations/{NEWCOMER}",
        claim((ROOT, {"VCPU": 1}), generation=3)),
    Ill("an old consumer without one", "PUT", f"/allocations/{CONSUMER}", claim((ROOT, {"VCPU": 1}))),
    Ill("an old consumer with another", "PUT", f"/allocations/{CONSUMER}",
        claim((ROOT, {"VCPU": 1}), generation=9)),
    Ill("no such provider to claim", "PUT", f"/allocations/{NEWCOMER}", claim((NOBODY, {"VCPU": 1}))),
    Ill("no such class to claim", "PUT", f"/allocations/{NEWCOMER}", claim((ROOT, {"COW": 1}))),
    Ill("no inventory to claim", "PUT", f"/allocations/{NEWCOMER}", claim((ROOT, {"VGPU": 1}))),
    Ill("too much", "PUT", f"/allocations/{NEWCOMER}", claim((ROOT, {"VCPU": 9}))),
    Ill("above the largest", "PUT", f"/allocations/{NEWCOMER}", claim((ROOT, {"MEMORY_MB": 2048}))),
    Ill("below the smallest", "PUT", f"/allocations/{NEWCOMER}", claim((ROOT, {"MEMORY_MB": 64}))),
    Ill("out of step", "PUT", f"/allocations/{NEWCOMER}", claim((ROOT, {"MEMORY_MB": 200}))),
    Ill("too much, 1.0", "PUT", f"/allocations/{NEWCOMER}", older(0, (ROOT, {"VCPU": 9})), minor=0),
    Ill("nothing claimed, 1.12", "PUT", f"/allocations/{NEWCOMER}", older(12), minor=12),
    Ill("several, too much", "POST", "/allocations", {NEWCOMER: claim((ROOT, {"VCPU": 9}))}),
    Ill("several, no such provider", "POST", "/allocations", {NEWCOMER: claim((NOBODY, {"VCPU": 1}))}),
    Ill("several, stale", "POST", "/allocations", {CONSUMER: claim((ROOT, {"VCPU": 1}), generation=9)}),
    Ill("several, none", "POST", "/allocations", {}),
    Ill("usages of no project", "GET", "/usages"),
    # the reshaper
    Ill("reshapes nobody", "POST", "/reshaper", reshaped(NOBODY, 0, {}, VCPU=TOTAL)),
    Ill("reshapes, stale", "POST", "/reshaper", reshaped(ROOT, 99, {}, VCPU=TOTAL)),
    Ill("reshapes away what is in use", "POST", "/reshaper", reshaped(ROOT, G, {}, MEMORY_MB=TOTAL)),
    Ill("reshapes a consumer, stale", "POST", "/reshaper",
        reshaped(ROOT, G, {CONSUMER: claim((ROOT, {"VCPU": 1}), generation=9)}, VCPU=TOTAL, MEMORY_MB=TOTAL)),
    Ill("reshapes to too little", "POST", "/reshaper",
        reshaped(ROOT, G, {NEWCOMER: claim((ROOT, {"VCPU": 9}))}, VCPU=TOTAL, MEMORY_MB=TOTAL)),
    Ill("reshapes a claim on nobody", "POST", "/reshaper",
        reshaped(ROOT, G, {NEWCOMER: claim((NOBODY, {"VCPU": 9}))}, VCPU=TOTAL, MEMORY_MB=TOTAL)),
    Ill("reshapes a claim of a class nobody knows", "POST", "/reshaper",
        reshaped(ROOT, G, {NEWCOMER: claim((ROOT, {"COW": 9}))}, VCPU=TOTAL, MEMORY_MB=TOTAL)),
)  # fmt: skip


def furnish(api: PlacementApi) -> None:
    """A root with a child, a parent apart, and one consumer that holds something of both."""
    empty(api)
    for kind in ("resource_classes", "traits"):
        for name in ("CUSTOM_USED", "CUSTOM_FREE"):
            api.do("PUT", f"/{kind}/{name}")
    for id_, name, parent in (
        (ROOT, "root", None), (CHILD, "child", ROOT), (OTHER, "other", None), (AGGREGATE, "kid", OTHER),
    ):  # fmt: skip
        api.do("POST", RP, {"name": name, "uuid": id_, "parent_provider_uuid": parent})
    memory = {"total": 4096, "min_unit": 128, "max_unit": 1024, "step_size": 64}
    made = stocks(0, VCPU=TOTAL, MEMORY_MB=memory, CUSTOM_USED=TOTAL)
    api.do("PUT", f"{RP}/{ROOT}/inventories", made)
    api.do("PUT", f"{RP}/{CHILD}/inventories", stocks(0, DISK_GB={"total": 100}))
    traits = {"resource_provider_generation": 1, "traits": ["CUSTOM_USED"]}
    api.do("PUT", f"{RP}/{ROOT}/traits", traits)
    held = claim((ROOT, {"VCPU": 2, "MEMORY_MB": 128}), (CHILD, {"DISK_GB": 1}))
    api.do("PUT", f"/allocations/{CONSUMER}", held)
    assert api.get(f"{RP}/{ROOT}")["generation"] == 3, api.get(f"{RP}/{ROOT}")


@pytest.fixture(scope="module")
def both(subject_url: str, original_url: str) -> Iterator[tuple[PlacementApi, PlacementApi]]:
    ours, theirs = PlacementApi(subject_url), PlacementApi(original_url)
    for api in (ours, theirs):
        furnish(api)
    yield ours, theirs
    for api in (ours, theirs):
        empty(api)
        api.close()


def asked(api: PlacementApi, row: Ill) -> tuple[int, dict[str, str]]:
    headers = {**api.headers, "openstack-api-version": f"placement 1.{row.minor}"}
    body = row.raw
    if body is None and row.body is not None:
        body = json.dumps(row.body).encode()
    if body is not None:
        headers["content-type"] = "application/json"
    headers = {name: value for name, value in (headers | row.headers).items() if value}
    own = str(uuid.uuid5(uuid.NAMESPACE_OID, row.says))
    path = row.path.replace(NEWCOMER, own)
    body = (body or b"").replace(NEWCOMER.encode(), own.encode())
    answer = api.wire.send(row.method, api.wire.prefix + path, headers, body)
    if not answer.headers.get("content-type", "").startswith("application/json") or answer.status < 400:
        return answer.status, {"body": comparable(answer.text)}
    [error] = answer.json["errors"]
    assert error.pop("request_id", "") or True
    error["detail"] = comparable(error["detail"])
    return answer.status, error


def comparable(reply: str) -> str:
    for others in ("Failed validating", "Malformed JSON:", "Update conflict:"):  # jsonschema, JSON, SQL
        reply = reply.partition(others)[0]
    reply = re.sub("(invalid version string: [^;]*);.*", r"\1", reply)  # Python
    reply = re.sub(r"(No \w+ .*) ?: \1", r"\1", " ".join(reply.split()))
    return reply.replace(r"\\Z", "$").strip()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_a_refusal_reads_the_same(both: tuple[PlacementApi, PlacementApi], row: Ill) -> None:
    ours, theirs = (asked(api, row) for api in both)
    assert ours == theirs
