"""Every command that osc-placement adds to `openstack` works, and shows what was written."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import uuid
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import pytest
from cliff.help import HelpCommand
from openstackclient.shell import OpenStackShell

from tests.compliance.api import NEWEST, PlacementApi

COMMANDS = {entry.name.replace("_", " ") for entry in entry_points(group="openstack.placement.v1")}
toured: dict[str, set[str]] = {}  # test → the commands it is here for


def tours(*commands: str) -> Callable[[Any], Any]:
    def mark(test: Any) -> Any:
        toured[test.__name__] = set(commands)
        return pytest.mark.tour(*commands)(test)

    return mark


class OpenStack:
    """The `openstack` command, without starting Python anew."""

    def __init__(self, base_url: str) -> None:
        self.given = ["--os-auth-type", "admin_token", "--os-token", "admin", "--os-endpoint", base_url]
        self.used: set[str] = set()

    def __call__(self, line: str, version: str = NEWEST) -> Any:
        words = shlex.split(line)
        command = max((c for c in COMMANDS if words[: len(c.split())] == c.split()), key=len)
        self.used.add(command)
        shows = any(verb in words for verb in ("list", "show")) or line.startswith(_SHOWING)
        arguments = [*self.given, "--os-placement-api-version", version, *words, *(["-f", "json"] * shows)]
        code, sent, complaints = in_a_child(lambda: OpenStackShell().run(arguments))
        assert code == 0, f"openstack {line}: {complaints}"
        return json.loads(sent) if sent.strip() else None


def in_a_child(run: Callable[[], int]) -> tuple[int, str, str]:
    """Exit code, output and complaints. A child: the shell remembers its first server and version."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                sys.stdout, sys.stderr = out, err
                code = run()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            finally:
                out.flush()
                err.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()


_SHOWING = (
    "resource provider create", "resource provider set", "resource provider inventory set",
    "resource provider inventory class set", "resource provider aggregate set",
    "resource provider trait set", "resource provider allocation set", "resource provider allocation unset",
)  # fmt: skip


@pytest.fixture(scope="module")
def _loaded() -> None:
    for group in entry_points().groups:
        if group.startswith("openstack."):
            for entry in entry_points(group=group):
                entry.load()
    HelpCommand(None, None).get_parser("help")


@pytest.fixture
def openstack(request: pytest.FixtureRequest, api: PlacementApi, _loaded: None) -> Any:
    openstack = OpenStack(api.wire.base_url)
    yield openstack
    wanted = set(request.node.get_closest_marker("tour").args)
    assert wanted <= openstack.used, f"not tried: {wanted - openstack.used}"


def id_() -> str:
    return str(uuid.uuid4())


def provider(openstack: OpenStack, name: str = "host", flags: str = "", version: str = NEWEST) -> str:
    made = openstack(f"resource provider create {name} {flags}", version)
    assert made["name"] == name and made["generation"] == 0
    return str(made["uuid"])


def by(rows: list[dict[str, Any]], column: str) -> dict[str, dict[str, Any]]:
    return {row[column]: row for row in rows}


def test_every_command_is_toured() -> None:
    assert set().union(*toured.values()) == COMMANDS


@tours(
    "resource provider create", "resource provider list", "resource provider show",
    "resource provider set", "resource provider delete",
)  # fmt: skip
@pytest.mark.parametrize("version", ["1.0", "1.14", "1.20", NEWEST])
def test_providers(openstack: OpenStack, version: str) -> None:
    given = id_()
    root = provider(openstack, "root", f"--uuid {given}", version)
    assert root == given
    openstack(f"resource provider set {root} --name renamed", version)
    other = provider(openstack, "other", "", version)
    assert openstack(f"resource provider show {root}", version)["name"] == "renamed"
    if version != "1.0":
        moved = openstack(f"resource provider set {other} --name other --parent-provider {root}", version)
        assert moved["parent_provider_uuid"] == moved["root_provider_uuid"] == root
        tree = openstack(f"resource provider list --in-tree {other}", version)
        assert {row["uuid"] for row in tree} == {root, other}
    assert [row["uuid"] for row in openstack("resource provider list --name renamed", version)] == [root]
    assert [row["name"] for row in openstack(f"resource provider list --uuid {other}", version)] == ["other"]
    openstack(f"resource provider delete {other}", version)
    openstack(f"resource provider delete {root}", version)
    assert openstack("resource provider list", version) == []


@tours(
    "resource provider inventory set", "resource provider inventory class set",
    "resource provider inventory show", "resource provider inventory list",
    "resource provider inventory delete",
)  # fmt: skip
@pytest.mark.parametrize("version", ["1.0", NEWEST])
def test_inventories(openstack: OpenStack, version: str) -> None:
    host = provider(openstack, version=version)
    at = "resource provider inventory"
    shown = openstack(f"{at} set {host} --resource VCPU=8 --resource VCPU:max_unit=4 --resource DISK_GB=100",
                      version)  # fmt: skip
    assert by(shown, "resource_class")["VCPU"]["max_unit"] == 4
    changed = openstack(f"{at} class set {host} DISK_GB --total 200 --allocation_ratio 1.5", version)
    assert (changed["total"], changed["allocation_ratio"]) == (200, 1.5)
    assert openstack(f"{at} show {host} DISK_GB", version)["total"] == 200
    amended = openstack(f"{at} set {host} --amend --resource VCPU:reserved=2", version)
    assert {row["resource_class"] for row in amended} == {"VCPU", "DISK_GB"}
    dry = openstack(f"{at} set {host} --dry-run --resource VGPU=1", version)
    assert [row["resource_class"] for row in dry] == ["VGPU"]
    openstack(f"{at} delete {host} --resource-class DISK_GB", version)
    left = openstack(f"{at} list {host}", version)
    assert [(row["resource_class"], row["reserved"], row["used"]) for row in left] == [("VCPU", 2, 0)]
    if version == NEWEST:
        openstack(f"{at} delete {host}", version)
        assert openstack(f"{at} list {host}", version) == []


@tours("resource provider aggregate set", "resource provider aggregate list")
def test_aggregates(openstack: OpenStack) -> None:
    host, rack, room = provider(openstack), id_(), id_()
    at = "resource provider aggregate"
    openstack(f"{at} set {host} --aggregate {rack} --aggregate {room}", "1.1")
    openstack(f"{at} set {host} --aggregate {rack} --generation 0")
    assert openstack(f"{at} list {host}") == [{"uuid": rack}]
    assert [row["uuid"] for row in openstack(f"resource provider list --member-of {rack},{room}")] == [host]
    inventory = openstack(f"resource provider inventory set {rack} --aggregate --resource VCPU=4")
    assert [(row["resource_provider"], row["total"]) for row in inventory] == [(host, 4)]


@tours("trait create", "trait show", "trait list", "trait delete")
def test_traits(openstack: OpenStack) -> None:
    openstack("trait create CUSTOM_BLUE")
    assert openstack("trait show CUSTOM_BLUE") == {"name": "CUSTOM_BLUE"}
    names = {row["name"] for row in openstack("trait list")}
    assert {"CUSTOM_BLUE", "HW_CPU_X86_AVX2"} <= names
    assert openstack("trait list --name startswith:CUSTOM_") == [{"name": "CUSTOM_BLUE"}]
    assert openstack("trait list --name in:CUSTOM_BLUE,CUSTOM_RED") == [{"name": "CUSTOM_BLUE"}]
    openstack("trait delete CUSTOM_BLUE")
    assert openstack("trait list --name startswith:CUSTOM_") == []


@tours("resource provider trait set", "resource provider trait list", "resource provider trait delete")
def test_traits_of_a_provider(openstack: OpenStack) -> None:
    host, at = provider(openstack), "resource provider trait"
    shown = openstack(f"{at} set {host} --trait HW_CPU_X86_AVX2 --trait STORAGE_DISK_SSD")
    assert {row["name"] for row in shown} == {"HW_CPU_X86_AVX2", "STORAGE_DISK_SSD"}
    assert {row["name"] for row in openstack(f"{at} list {host}")} == {"HW_CPU_X86_AVX2", "STORAGE_DISK_SSD"}
    assert len(openstack("trait list --associated")) == 2
    having = "resource provider list --required HW_CPU_X86_AVX2"
    assert [row["uuid"] for row in openstack(f"{having} --forbidden HW_CPU_X86_SSE")] == [host]
    assert openstack(f"{having} --forbidden STORAGE_DISK_SSD") == []
    openstack(f"{at} delete {host}")
    assert openstack(f"{at} list {host}") == []


@tours(
    "resource class create", "resource class set", "resource class show", "resource class list",
    "resource class delete",
)  # fmt: skip
def test_resource_classes(openstack: OpenStack) -> None:
    openstack("resource class create CUSTOM_CARD")
    openstack("resource class set CUSTOM_CHIP")
    assert openstack("resource class show CUSTOM_CHIP") == {"name": "CUSTOM_CHIP"}
    names = {row["name"] for row in openstack("resource class list")}
    assert {"CUSTOM_CARD", "CUSTOM_CHIP", "VCPU"} <= names
    openstack("resource class delete CUSTOM_CARD")
    assert "CUSTOM_CARD" not in {row["name"] for row in openstack("resource class list")}


@tours(
    "resource provider allocation set", "resource provider allocation show",
    "resource provider allocation unset", "resource provider allocation delete",
    "resource provider usage show", "resource usage show",
)  # fmt: skip
@pytest.mark.parametrize("version", ["1.12", "1.28", NEWEST])
def test_allocations(openstack: OpenStack, version: str) -> None:
    host, consumer, at = provider(openstack), id_(), "resource provider allocation"
    openstack(f"resource provider inventory set {host} --resource VCPU=8 --resource MEMORY_MB=4096")
    owner = "--project-id p1 --user-id u1" + (" --consumer-type INSTANCE" if version == NEWEST else "")
    held = f"--allocation rp={host},VCPU=2,MEMORY_MB=1024"
    (row,) = openstack(f"{at} set {consumer} {held} {owner}", version)
    assert row["resources"] == {"VCPU": 2, "MEMORY_MB": 1024} and row["project_id"] == "p1"
    (row,) = openstack(f"{at} show {consumer}", version)
    assert (row["resource_provider"], row["user_id"]) == (host, "u1")
    (row,) = openstack(f"{at} unset {consumer} --resource-class MEMORY_MB", version)
    assert row["resources"] == {"VCPU": 2}
    used = by(openstack(f"resource provider usage show {host}", version), "resource_class")
    assert {class_: row["usage"] for class_, row in used.items()} == {"VCPU": 2, "MEMORY_MB": 0}
    assert openstack(f"resource provider show {host} --allocations", version)["allocations"]
    if version != NEWEST:
        used = by(openstack("resource usage show p1 --user-id u1", version), "resource_class")
        assert used["VCPU"]["usage"] == 2
    openstack(f"{at} delete {consumer}", version)
    assert openstack(f"{at} show {consumer}", version) == []
    if version == NEWEST:
        openstack("resource usage show p1", "1.9")


@tours("allocation candidate list")
def test_candidates(openstack: OpenStack) -> None:
    near, far, rack = provider(openstack, "near"), provider(openstack, "far"), id_()
    for host in (near, far):
        openstack(f"resource provider inventory set {host} --resource VCPU=8 --resource DISK_GB=100")
    openstack(f"resource provider trait set {near} --trait HW_CPU_X86_AVX2")
    openstack(f"resource provider aggregate set {far} --aggregate {rack}", "1.18")
    ask = "allocation candidate list --resource VCPU=2 --resource DISK_GB=10"
    for version in ("1.10", "1.12", "1.17", "1.29", NEWEST):
        rows = openstack(ask, version)
        assert {row["resource provider"] for row in rows} == {near, far}
        assert all("VCPU=0/8" in row["inventory used/capacity"] for row in rows)
    assert len(openstack(f"{ask} --limit 1")) == 1
    for limits, expected in (
        ("--required HW_CPU_X86_AVX2", near),
        ("--forbidden HW_CPU_X86_AVX2", far),
        (f"--member-of {rack}", far),
        ("--required HW_CPU_X86_AVX2,HW_CPU_X86_AVX", near),
    ):
        assert [row["resource provider"] for row in openstack(f"{ask} {limits}")] == [expected]
    grouped = "--group 1 --resource VCPU=1 --group 2 --resource VCPU=1 --required HW_CPU_X86_AVX2"
    rows = openstack(f"allocation candidate list {grouped} --group-policy none")
    assert [(row["allocation"], row["resource provider"]) for row in rows] == [("VCPU=2", near)]
