"""Lists of another system's instances, and which instances are adopted."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit import BadSetting
from bus.reports import SHARES
from bus.resources import Consumer, Provider
from bus.vocabulary import Allocations
from features.adoption.adoptable import OldServer, flavor_of, judge, old_servers
from scheduler_worker.testing import RequestOptions, alternatives_of
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

ONE = uid(1)
WEB = OldServer(name="web", host="h1", flavor="m1.small", project="p")
AS_JSON = {"uuid": ONE, "name": "web", "host": "h1", "flavor": "m1.small", "project": "p"}
AS_NOVA = {
    "id": ONE.upper(),
    "name": "web",
    "OS-EXT-SRV-ATTR:host": "h1",
    "flavor": {"original_name": "m1.small", "vcpus": 2, "ram": 512, "extra_specs": {"hw:boot_menu": "true"}},
    "tenant_id": "p",
    "user_id": "u",
}


@pytest.mark.parametrize(
    ("ending", "text", "found"),
    [
        ("json", json.dumps([AS_JSON]), WEB),
        ("json", json.dumps(AS_JSON) + "\n\n", WEB),
        ("yaml", f"- uuid: {ONE}\n  name: web\n  host: h1\n  flavor: m1.small\n  project: p\n", WEB),
        ("csv", f"ID,Name,Host,Flavor,Project ID\n{ONE},web,h1,m1.small,p\n", WEB),
        ("csv", f"uuid,name,vcpus\n{ONE},web,2\n", OldServer(name="web", figures={"vcpus": 2})),
        ("json", json.dumps([AS_NOVA]), OldServer(
            name="web", host="h1", flavor="m1.small", project="p", user="u",
            figures={"vcpus": 2, "memory_mb": 512}, extra_specs={"hw:boot_menu": "true"},
        )),
    ],
)  # fmt: skip
def test_each_file_format_is_read(tmp_path: Path, ending: str, text: str, found: OldServer) -> None:
    file = tmp_path / f"servers.{ending}"
    file.write_text(text)
    assert old_servers(file) == {ONE: found}


@pytest.mark.parametrize(
    ("ending", "text", "says"),
    [
        ("json", "{", "is no JSON"),
        ("json", "[1]", "entry 1: is no object"),
        ("json", '[{"name": "web"}]', "entry 1: uuid: is missing"),
        ("yaml", "a: [", "is no YAML"),
        ("csv", f"uuid,vcpus\n{ONE},two\n", "entry 1: vcpus: 'two' is no number"),
        ("csv", f"uuid,name\n{ONE},a\n{ONE},b\n", "entry 2: contradicts"),
        ("json", json.dumps([{"uuid": ONE, "name": [1]}]), "entry 1: name: [1] is no text"),
        ("json", json.dumps([{"uuid": ONE, "name": "w" * 256}]), "entry 1: name: is too long"),
    ],
)
def test_an_unreadable_server_file_is_refused_with_entry_and_field(
    tmp_path: Path, ending: str, text: str, says: str
) -> None:
    file = tmp_path / f"servers.{ending}"
    file.write_text(text)
    with pytest.raises(BadSetting) as refused:
        old_servers(file)
    assert says in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"nowhere\.csv: No such file"):
        old_servers(tmp_path / "nowhere.csv")


A, B, CHILD, POOL = (uid(number, "a") for number in range(1, 5))
WHO = uid(9)


def a_host(id_: str, **given: Any) -> Provider:
    sent = {"root": id_, "cell": "c1", "agent": "agent-1", "host": f"host-{id_[-1]}", **given}
    return Provider(id=id_, name=id_, parent=None, generation=1, **sent)


TREES = {
    A: a_host(A),
    B: a_host(B),
    CHILD: a_host(CHILD, root=A, host="host-1"),
    POOL: a_host(POOL, cell="", agent="", host="", traits=(SHARES,)),
}
CAME_OVER = Consumer(
    id=WHO, generation=4, project="p", user="u", type="INSTANCE", client=True,
    allocations={A: {"VCPU": 2, "MEMORY_MB": 512}},
)  # fmt: skip


def why(consumer: Consumer = CAME_OVER, server: OldServer | None = None, **given: Any) -> str:
    judged = judge(consumer, {**TREES, **given.pop("trees", {})}, server, named=given.pop("named", False),
                   **given)  # fmt: skip
    assert (judged.request is None) == bool(judged.why)
    return judged.why


@pytest.mark.parametrize(
    ("consumer", "given", "says"),
    [
        ({"allocations": {A: {"VCPU": 1}, B: {"VCPU": 1}}}, {}, "of 2 hosts (host-1, host-2)"),
        ({"allocations": {POOL: {"DISK_GB": 1}}}, {}, "holds nothing of a host, only of pools"),
        ({"allocations": {uid(8, "a"): {"VCPU": 1}}}, {}, "it was deleted"),
        ({"client": False}, {}, "berth itself claimed for it last"),
        ({"type": "MIGRATION"}, {}, "its type is MIGRATION"),
        ({"type": "MIGRATION"}, {"named": True}, "its type is MIGRATION"),
        ({"type": None}, {}, "it has no consumer type"),
        ({}, {"trees": {A: a_host(A, cell="")}}, "is of no cell: `berth resource provider reset"),
        ({}, {"trees": {A: a_host(A, agent="")}}, "no agent of cell c1 has reported its host"),
        ({}, {"trees": {A: a_host(A, gone=True)}}, "is deleted, as its agent reported"),
        ({}, {"foreign": ["agent-1"]}, "agent-1, which is no agent of berth"),
        ({}, {"server": OldServer(host="host-2")}, "the file has it on host-2, placement on host-1"),
        ({}, {"server": OldServer(project="x")}, "the file gives it to project x, placement to p"),
        ({}, {"server": OldServer(figures={"vcpus": 3})}, "the file gives it 3 vcpus, placement 2 VCPU"),
    ],
)
def test_uncertain_instances_are_listed_with_the_reason(
    consumer: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    assert says in why(replace(CAME_OVER, **consumer), **given)


@pytest.mark.parametrize("given", [{"named": True}, {"server": OldServer(name="web")}])
def test_a_consumer_without_a_type_is_adopted_on_request(given: dict[str, Any]) -> None:
    assert why(replace(CAME_OVER, type=None), **given) == ""


@pytest.mark.parametrize(
    "held",
    [
        {A: {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}},
        {A: {"MEMORY_MB": 512, "PCPU": 4}, POOL: {"DISK_GB": 5}},
        {A: {"VCPU": 1, "MEMORY_MB": 64}, CHILD: {"VGPU": 1}},
        {A: {"VCPU": 1, "MEMORY_MB": 64, "SRIOV_NET_VF": 1}, CHILD: {"SRIOV_NET_VF": 2}},
        {A: {"VCPU": 2, "MEMORY_MB": 512}, CHILD: {"VCPU": 2, "MEMORY_MB": 512}},
        {A: {"CUSTOM_BAREMETAL_GOLD": 1}},
    ],
)
def test_the_derived_flavor_equals_the_allocations(held: Allocations) -> None:
    flavor = flavor_of(held, OldServer(extra_specs={"resources:VGPU": "9", "hw:boot_menu": "true"}))
    assert flavor.extra_specs["hw:boot_menu"] == "true"
    (alternative,) = alternatives_of(a_request(flavor=flavor), RequestOptions(), lambda host: ())
    asked = sorted(
        (name, amount) for group in alternative.question.groups for name, amount in group.resources.items()
    )
    assert asked == sorted((name, amount) for each in held.values() for name, amount in each.items())


DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("ending", "text", "says"), [("json", f'{{"later": {DEEP}}}', "no JSON"), ("yaml", DEEP, "no YAML")]
)
def test_nested_lists_are_refused_with_a_clear_error(
    tmp_path: Path, ending: str, text: str, says: str
) -> None:
    file = tmp_path / f"servers.{ending}"
    file.write_text(text)
    with pytest.raises(BadSetting, match=says):
        old_servers(file)
