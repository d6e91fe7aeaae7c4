"""`berth openstack import placement` brings over what an OpenStack Placement holds, again and again."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable

import pytest

from deploy.placement import BERTH, ROOT
from tests.compliance.api import PlacementApi

Import = Callable[..., tuple[int, str]]
OWNER = {"project_id": "p", "user_id": "u", "consumer_type": "INSTANCE"}


@pytest.fixture
def import_(api: PlacementApi, original: PlacementApi) -> Import:
    def run(*flags: str, back: bool = False) -> tuple[int, str]:
        command = [str(BERTH), "-m", "berth", "openstack", "import", "placement", *flags]
        urls = original.wire.base_url, api.wire.base_url
        source, target = reversed(urls) if back else urls
        where = ["--url", source, "--to", target]
        done = subprocess.run(command + where, cwd=ROOT, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


def id_() -> str:
    return str(uuid.uuid4())


class ImportedCloud:
    def __init__(self, api: PlacementApi, hosts: int = 3, *, prefix: str = "host") -> None:
        self.api = api
        self.rack = id_()
        api.do("PUT", "/traits/CUSTOM_RED")
        api.do("PUT", "/traits/CUSTOM_UNUSED")
        for name in ("CUSTOM_VF", "CUSTOM_UNUSED"):
            api.do("PUT", f"/resource_classes/{name}")
        self.hosts = [self.host(f"{prefix}-{number}") for number in range(hosts)]
        self.consumers = [self.consumer(host) for host in self.hosts[:3]]

    def provider(self, name: str, parent: str | None, *traits: str, **inventories: int) -> str:
        made = id_()
        at = f"/resource_providers/{made}"
        body = {"name": name, "uuid": made, "parent_provider_uuid": parent}
        self.api.do("POST", "/resource_providers", body)
        totals = {class_: {"total": total} for class_, total in inventories.items()}
        self.api.do("PUT", f"{at}/inventories", {"inventories": totals, "resource_provider_generation": 0})
        self.api.do("PUT", f"{at}/traits", {"traits": list(traits), "resource_provider_generation": 1})
        self.api.do("PUT", f"{at}/aggregates", [self.rack], version="1.18")
        return made

    def host(self, name: str) -> tuple[str, list[str]]:
        """The root, and its cells."""
        root = self.provider(name, None, "CUSTOM_RED", DISK_GB=1000)
        cells = []
        for cell in "ab":
            cells.append(self.provider(f"{name}-{cell}", root, "HW_NUMA_ROOT", VCPU=8, MEMORY_MB=4096))
            for device in "12":
                self.provider(f"{name}-{cell}-{device}", cells[-1], CUSTOM_VF=4)
        return root, cells

    def consumer(self, host: tuple[str, list[str]]) -> str:
        root, cells = host
        wanted = {
            root: {"resources": {"DISK_GB": 10}},
            cells[0]: {"resources": {"VCPU": 2, "MEMORY_MB": 512}},
        }
        made = id_()
        self.api.do(
            "PUT", f"/allocations/{made}", {"allocations": wanted, "consumer_generation": None, **OWNER}
        )
        return made


def test_all_contents_are_imported_unchanged(
    api: PlacementApi, original: PlacementApi, import_: Import
) -> None:
    cloud = ImportedCloud(original, hosts=4)
    code, reply = import_("--dry-run")
    assert code == 0 and "would bring over 28 providers, 3 consumers and 4 names" in reply
    assert api.get("/resource_providers") == {"resource_providers": []}

    code, reply = import_("--verify")
    assert "28 providers made" in reply and "3 consumers brought over" in reply
    assert (code, "both sides hold the same" in reply) == (0, True), reply
    held = api.get(f"/allocations/{cloud.consumers[0]}")
    assert {name: held[name] for name in OWNER} == OWNER

    before = api.get("/resource_providers")
    code, reply = import_("--verify")
    assert "nothing had to be changed" in reply and code == 0
    assert api.get("/resource_providers") == before  # generations too


def test_changes_at_berth_are_exported_to_placement(
    api: PlacementApi, original: PlacementApi, import_: Import
) -> None:
    cloud = ImportedCloud(original)
    assert import_("--verify")[0] == 0
    deleted, moved, _ = cloud.consumers
    # Meanwhile at berth: a deletion, a move, a boot, a new host, and a provider with other contents.
    api.do("DELETE", f"/allocations/{deleted}")
    meanwhile = ImportedCloud(api, hosts=1, prefix="new")
    root, cells = meanwhile.hosts[0]
    body = {"allocations": {root: {"resources": {"DISK_GB": 7}}}, "consumer_generation": 1, **OWNER}
    api.do("PUT", f"/allocations/{moved}", body)
    generation = api.get(f"/resource_providers/{cells[1]}")["generation"]
    at = f"/resource_providers/{cells[1]}"
    traits = {"traits": ["CUSTOM_RED"], "resource_provider_generation": generation}
    api.do("PUT", f"{at}/traits", traits)
    inventories = {"VCPU": {"total": 2}, "MEMORY_MB": {"total": 64, "reserved": 64, "allocation_ratio": 1.5}}
    api.do(
        "PUT",
        f"{at}/inventories",
        {"inventories": inventories, "resource_provider_generation": generation + 1},
    )

    code, reply = import_("--verify", "--prune", back=True)
    assert (code, "both sides hold the same" in reply) == (0, True), reply
    assert original.get(f"/allocations/{deleted}")["allocations"] == {}
    assert list(original.get(f"/allocations/{moved}")["allocations"]) == [root]
    assert original.get(f"/allocations/{meanwhile.consumers[0]}")["consumer_type"] == "INSTANCE"
    before = original.get("/resource_providers")
    code, reply = import_("--verify", "--prune", back=True)
    assert "nothing had to be changed" in reply and code == 0
    assert original.get("/resource_providers") == before  # generations too


def test_allocations_beyond_the_inventory_are_carried_back(
    api: PlacementApi, original: PlacementApi, import_: Import
) -> None:
    cloud = ImportedCloud(api, hosts=1)
    at = f"/resource_providers/{cloud.hosts[0][1][0]}"
    inventories = {"VCPU": {"total": 1}, "MEMORY_MB": {"total": 4096}}
    generation = api.get(at)["generation"]
    body = {"inventories": inventories, "resource_provider_generation": generation}
    api.do("PUT", f"{at}/inventories", body)
    code, reply = import_("--verify", back=True)
    assert code == 0, reply
    assert original.get(f"{at}/inventories")["inventories"]["VCPU"]["total"] == 1
    assert original.get(f"/allocations/{cloud.consumers[0]}")["allocations"][cloud.hosts[0][1][0]]
