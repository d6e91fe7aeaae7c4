"""Comparison and order of an import."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from berth.importing.placement_contents import (
    ImportedConsumer,
    ImportedProvider,
    PlacementContents,
    differences,
    unimportable,
)
from berth.importing.writers import portions
from berth.operations.adoptable import NOBODY, SHARES, OldServer, flavor_of, judge, old_servers
from berth.settings import BadSetting
from bus.reports import Inventory
from bus.resources import Consumer, Provider
from bus.vocabulary import Allocations
from scheduler_worker import RequestOptions, alternatives_of
from tests.support.ids import uid
from tests.support.scheduler_builders import a_request

HOST = ImportedProvider(
    id="h", name="host", parent=None, inventories={"VCPU": Inventory(total=8)},
    traits=frozenset({"CUSTOM_RED"}), aggregates=frozenset({"rack"}),
)  # fmt: skip
SOMEBODY = ImportedConsumer(id="c", project="p", user="u", type="INSTANCE", allocations={"h": {"VCPU": 2}})


def world(*things: ImportedProvider | ImportedConsumer, classes: set[str] | None = None) -> PlacementContents:
    made = PlacementContents(classes=classes or set())
    for thing in things:
        if isinstance(thing, ImportedProvider):
            made.providers[thing.id] = thing
        else:
            made.consumers[thing.id] = thing
    return made


def other(**fields: Any) -> PlacementContents:
    """Return contents of a host that differs in the fields."""
    return world(dataclasses.replace(HOST, **fields))


def moved(**fields: Any) -> PlacementContents:
    """Return contents of a consumer that differs in the fields."""
    return world(dataclasses.replace(SOMEBODY, **fields))


@pytest.mark.parametrize(
    ("theirs", "ours", "says"),
    [
        (world(HOST, SOMEBODY), world(HOST, SOMEBODY), []),
        (world(HOST), world(), ["provider h: 'host' is missing here"]),
        (world(), world(HOST), ["provider h: 'host' is only here"]),
        (world(HOST), other(name="x"), ["provider h: 'host': its name is 'x' here"]),
        (world(HOST), other(parent="x"), ["provider h: 'host': its parent is x here, not None"]),
        (world(HOST), other(inventories={"VCPU": Inventory(total=8, reserved=1)}),
         ["provider h: 'host': inventory of VCPU has reserved 1 here, not reserved 0"]),
        (world(HOST), other(inventories={"VGPU": Inventory(total=8)}),
         ["provider h: 'host': inventory of VCPU is missing here",
          "provider h: 'host': inventory of VGPU is only here"]),
        (world(HOST), other(traits=frozenset(), aggregates=frozenset({"rack", "room"})),
         ["provider h: 'host': trait CUSTOM_RED is missing here",
          "provider h: 'host': aggregate room is only here"]),
        (world(SOMEBODY), world(), ["consumer c: holds nothing here, there 2 VCPU of h"]),
        (world(), world(SOMEBODY), ["consumer c: holds 2 VCPU of h only here"]),
        (world(SOMEBODY), moved(generation=7), []),
        (world(SOMEBODY), moved(project="q"), ["consumer c: its project is 'q' here, not 'p'"]),
        (world(SOMEBODY), moved(allocations={"h": {"VCPU": 3}}),
         ["consumer c: holds 3 VCPU of h here, there 2 VCPU of h"]),
        (moved(type=None), world(SOMEBODY), []),
        (world(classes={"CUSTOM_X"}), world(classes={"CUSTOM_Y"}), ["class CUSTOM_X: missing here"]),
    ],
)  # fmt: skip
def test_differences(theirs: PlacementContents, ours: PlacementContents, says: list[str]) -> None:
    assert [str(difference) for difference in differences(theirs, ours)] == says


def test_a_name_used_only_by_the_target_refuses_its_tree_and_consumers() -> None:
    child = dataclasses.replace(HOST, id="child", name="child", parent="h")
    third = dataclasses.replace(HOST, id="o", name="other")
    theirs = world(HOST, child, third, dataclasses.replace(SOMEBODY, allocations={"child": {"VCPU": 2}}))
    ours = world(dataclasses.replace(HOST, id="old"))
    assert unimportable(theirs, ours, prune=False).keys() == {"h", "child", "c"}
    assert unimportable(theirs, ours, prune=True) == {}
    assert unimportable(theirs, world(HOST), prune=False) == {}


def test_differences_mark_providers_without_a_source() -> None:
    found = differences(world(HOST), world(dataclasses.replace(HOST, id="x"), SOMEBODY))
    assert {difference.id: difference.ours_alone for difference in found} == {
        "h": False,
        "x": True,
        "c": True,
    }


def forest(trees: int, size: int) -> list[ImportedProvider]:
    """Each provider below the one before it, in no order."""
    made = [
        dataclasses.replace(HOST, id=f"{tree}-{at}", parent=f"{tree}-{at - 1}" if at else None)
        for tree in range(trees)
        for at in range(size)
    ]
    random.Random(1).shuffle(made)
    return made


def test_parents_come_first_and_trees_together() -> None:
    known = world(*forest(20, 5))
    ordered = known.parents_first(set(known.providers))
    ids = [provider.id for provider in ordered]
    assert sorted(ids) == sorted(known.providers)
    for at in range(0, 100, 5):
        tree = ids[at].partition("-")[0]
        assert ids[at : at + 5] == [f"{tree}-{number}" for number in range(5)]


def test_requested_providers_may_begin_below_a_root() -> None:
    known = world(*forest(1, 4))
    assert [provider.id for provider in known.parents_first({"0-3", "0-2"})] == ["0-2", "0-3"]


@pytest.mark.parametrize(("trees", "size"), [(0, 1), (1, 1), (1300, 1), (300, 7), (2, 900)])
def test_portions_are_whole_trees(trees: int, size: int) -> None:
    known = world(*forest(trees, size))
    found = list(portions(known.parents_first(set(known.providers))))
    assert sum(map(len, found)) == trees * size
    for portion in found:
        ids = {provider.id for provider in portion}
        assert all(provider.parent is None or provider.parent in ids for provider in portion)
        assert len(portion) < 500 + size


def test_used_amounts_are_summed_over_consumers() -> None:
    known = world(HOST, SOMEBODY, dataclasses.replace(SOMEBODY, id="d"))
    assert known.used("h", "VCPU") == 4
    assert known.used("h", "VGPU") == 0


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
    told = {"root": id_, "cell": "c1", "agent": "agent-1", "host": f"host-{id_[-1]}", **given}
    return Provider(id=id_, name=id_, parent=None, generation=1, **told)


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


def test_an_instance_on_one_host_is_adopted_with_its_allocations() -> None:
    request = judge(CAME_OVER, TREES, None, named=False).request
    assert request is not None
    chosen, spec = request.chosen, request.spec
    assert (request.build, request.cell, request.generation) == (WHO, "c1", 4)
    assert (chosen.root, chosen.host, chosen.agent) == (A, "host-1", "agent-1")
    assert chosen.choice.allocations == CAME_OVER.allocations
    assert (spec.project, spec.user, spec.flavor.vcpus, spec.flavor.memory_mb) == ("p", "u", 2, 512)


def test_missing_project_and_flavor_come_from_the_file() -> None:
    nobodys = replace(CAME_OVER, project=NOBODY, user=NOBODY)
    server = OldServer(name="web", host="host-1", flavor="m1.small", project="p9", user="u9",
                       figures={"vcpus": 2, "memory_mb": 512})  # fmt: skip
    request = judge(nobodys, TREES, server, named=False).request
    assert request is not None
    spec = request.spec
    assert (spec.name, spec.flavor.name, spec.project, spec.user) == ("web", "m1.small", "p9", "u9")


@pytest.mark.parametrize(
    "held", [{A: {"VCPU": 1}, CHILD: {"VGPU": 1}}, {CHILD: {"VGPU": 1}, POOL: {"DISK_GB": 5}}]
)
def test_a_tree_with_sharing_providers_is_one_host(held: Allocations) -> None:
    assert why(replace(CAME_OVER, allocations=held)) == ""


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
        ({}, {"trees": {A: a_host(A, cell="")}}, "is of no cell: `berth provider reset"),
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


# Its flavor asks for just what it holds


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
