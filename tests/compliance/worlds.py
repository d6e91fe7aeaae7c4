"""The worlds that the published gabbi files expect, each as a table, built through the public API alone.

The files name the class of the world they need and find its identifiers in environment variables. Two
things are written at older versions, because the original preparations go below the API: aggregates as a
plain list (so that the provider's generation stays), and allocations without a consumer type.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gabbi.fixture import GabbiFixture

from tests.compliance.api import PlacementApi, empty

SHARES = "MISC_SHARES_VIA_AGGREGATE"
EGRESS, INGRESS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"
Amounts = Mapping[str, int | Mapping[str, float]]


@dataclass(frozen=True)
class P:
    name: str
    known_as: str = ""
    under: str = ""
    aggregates: str = ""  # letters
    has: Amounts = field(default_factory=dict)
    traits: Sequence[str] = ()
    held: Sequence[Mapping[str, int]] = ()  # by one consumer each


class EmptiedServer(GabbiFixture):  # type: ignore[misc]  # gabbi is of the compliance environment
    """Empties the server, sets the variables every file may read, and makes the providers."""

    base_url: ClassVar[str] = ""
    aggregates: ClassVar[Mapping[str, str]] = {}  # letter → variable
    providers: ClassVar[Sequence[P]] = ()
    classes: ClassVar[Sequence[str]] = ()

    NAMED: ClassVar[Sequence[str]] = (
        "RP_UUID", "RP_NAME", "RP_UUID1", "RP_NAME1", "RP_UUID2", "RP_NAME2", "PROJECT_ID",
        "ADMIN_PROJECT_ID", "SERVICE_PROJECT_ID", "PROJECT_ID_ALT", "USER_ID", "USER_ID_ALT",
        "INSTANCE_UUID", "MIGRATION_UUID", "CONSUMER_UUID", "PARENT_PROVIDER_UUID",
        "ALT_PARENT_PROVIDER_UUID",
    )  # fmt: skip

    def start_fixture(self) -> None:
        self.before = dict(os.environ)
        self.api = PlacementApi(self.base_url)
        empty(self.api)
        os.environ |= {name: str(uuid.uuid4()) for name in self.NAMED}
        for suffix in ("", "1", "2"):
            os.environ["CUSTOM_RES_CLASS" + suffix] = "CUSTOM_IRON_NFV" + suffix
        self.made: dict[str, str] = {}
        self.names: set[str] = set()
        self.letters = {letter: str(uuid.uuid4()) for letter in self.aggregates}
        os.environ |= {variable: self.letters[letter] for letter, variable in self.aggregates.items()}
        for name in self.classes:
            self.name("resource_classes", name)
        for provider in self.providers:
            self.make(provider)

    def stop_fixture(self) -> None:
        self.api.close()
        for variable in os.environ.keys() - self.before.keys():
            del os.environ[variable]
        os.environ |= self.before

    def name(self, kind: str, name: str) -> None:
        """Make sure there is this class or trait."""
        if name.startswith("CUSTOM_") and name not in self.names:
            self.api.do("PUT", f"/{kind}/{name}")
            self.names.add(name)

    def make(self, p: P, id_: str = "", project: str = "p", user: str = "u") -> str:
        id_ = id_ or str(uuid.uuid4())
        self.made[p.name] = id_
        if p.known_as:
            os.environ[p.known_as] = id_
        at = f"/resource_providers/{id_}"
        parent = self.made[p.under] if p.under else None
        self.api.do(
            "POST", "/resource_providers", {"name": p.name, "uuid": id_, "parent_provider_uuid": parent}
        )
        if p.aggregates:
            self.api.do("PUT", f"{at}/aggregates", [self.letters[a] for a in p.aggregates], version="1.18")
        for class_, reply in p.has.items():
            self.name("resource_classes", class_)
            fields = reply if isinstance(reply, Mapping) else {"total": reply}
            inventory = {"max_unit": fields["total"], **fields, "resource_class": class_}
            self.api.do("POST", f"{at}/inventories", inventory)
        if p.traits:
            for trait in p.traits:
                self.name("traits", trait)
            wanted = {"traits": list(p.traits), "resource_provider_generation": len(p.has)}
            self.api.do("PUT", f"{at}/traits", wanted)
        for amounts in p.held:
            self.hold(id_, amounts, project, user)
        return id_

    def hold(self, id_: str, amounts: Mapping[str, int], project: str, user: str) -> str:
        consumer = str(uuid.uuid4())
        claim = {
            "allocations": {id_: {"resources": dict(amounts)}},
            "consumer_generation": None,
            "project_id": project,
            "user_id": user,
        }
        self.api.do("PUT", f"/allocations/{consumer}", claim, version="1.37")
        return consumer


class APIFixture(EmptiedServer):
    """Nothing but the variables."""


class OpenPolicyFixture(EmptiedServer):
    pass


class LegacyRBACPolicyFixture(EmptiedServer):
    pass


class SecureRBACPolicyFixture(EmptiedServer):
    pass


class CORSFixture(EmptiedServer):
    pass


class AllocationFixture(EmptiedServer):
    """One provider; two consumers of one user and one of another hold some of it."""

    def start_fixture(self) -> None:
        super().start_fixture()
        for name in ("ALT_USER_ID", "ALT_RP_UUID", "ALT_RP_NAME"):
            os.environ[name] = str(uuid.uuid4())
        disk = {"total": 2048, "step_size": 10, "min_unit": 10, "max_unit": 1000}
        id_ = os.environ["RP_UUID"]
        self.make(P(os.environ["RP_NAME"], has={"DISK_GB": disk, "VCPU": 10}), id_)
        for variable, amounts, user in (
            ("CONSUMER_0", {"DISK_GB": 1000}, "USER_ID"),
            ("CONSUMER_ID", {"VCPU": 6}, "USER_ID"),
            ("ALT_CONSUMER_ID", {"DISK_GB": 20, "VCPU": 1}, "ALT_USER_ID"),
        ):
            held_by = self.hold(id_, amounts, os.environ["PROJECT_ID"], os.environ[user])
            os.environ[variable] = held_by


_CPU = {"VCPU": {"total": 24, "allocation_ratio": 16.0}}
_CPU_AND_MEMORY = {**_CPU, "MEMORY_MB": {"total": 128 * 1024, "allocation_ratio": 1.5}}
_DISK = {"DISK_GB": {"total": 2000, "reserved": 100}}


class SharedStorageFixture(EmptiedServer):
    """Two computes, one without a disk, with two cells and their functions each; two shared disks."""

    aggregates: ClassVar = {"a": "AGG_UUID"}
    providers = (
        P("cn1", "CN1_UUID", "", "a", _CPU_AND_MEMORY, ("HW_CPU_X86_SSE", "HW_CPU_X86_SSE2")),
        P("cn2", "CN2_UUID", "", "a", {**_CPU_AND_MEMORY, **_DISK}),
        P("ss", "SS_UUID", "", "a", _DISK, (SHARES,)),
        P("ss2", "SS2_UUID", "", "a", _DISK, (SHARES,)),
        *(P(f"numa{c}_{n}", f"NUMA{c}_{n}_UUID", f"cn{c}") for c in (1, 2) for n in (1, 2)),
        *(
            P(f"pf{c}_{n}", f"PF{c}_{n}_UUID", f"numa{c}_{n}", has={"SRIOV_NET_VF": 8})
            for c in (1, 2)
            for n in (1, 2)
        ),
    )


class NUMAAggregateFixture(EmptiedServer):
    aggregates: ClassVar = {"a": "AGGA_UUID", "b": "AGGB_UUID", "c": "AGGC_UUID"}
    providers = (
        P("cn1", "CN1_UUID", "", "a"),
        P("cn2", "CN2_UUID", "", "ab"),
        P("ss1", "SS1_UUID", "", "a", _DISK, (SHARES,)),
        P("ss2", "SS2_UUID", "", "c", _DISK, (SHARES,)),
        P("numa1_1", "NUMA1_1_UUID", "cn1", "c", _CPU),
        P("numa1_2", "NUMA1_2_UUID", "cn1", "", _CPU),
        P("numa2_1", "NUMA2_1_UUID", "cn2", "", _CPU),
        P("numa2_2", "NUMA2_2_UUID", "cn2", "", _CPU),
    )


def _network(above: tuple[str, str]) -> tuple[P, ...]:
    memory = {"total": 2048}
    cells: tuple[Amounts, ...] = (
        {"VCPU": 4, "MEMORY_MB": {**memory, "min_unit": 512, "step_size": 256}},
        {"VCPU": 4, "MEMORY_MB": {**memory, "min_unit": 256, "max_unit": 1024}},
    )
    coarse = {**memory, "min_unit": 1024, "step_size": 128}
    functions = (  # of cn2: name, card, network, how many
        ("1_1", 1, 1, 4), ("1_2", 1, 2, 4),
        ("2_1", 2, 1, 2), ("2_2", 2, 2, 2), ("2_3", 2, 1, 2), ("2_4", 2, 2, 2),
        ("3_1", 3, 1, 8),
    )  # fmt: skip
    return (
        P("ss1", "SS1_UUID", "", "a", {"DISK_GB": 2000}, (SHARES,)),
        P("cn1", "CN1_UUID", above[0], "a", {}, ("COMPUTE_VOLUME_MULTI_ATTACH",)),
        P("numa0", "NUMA0_UUID", "cn1", "", cells[0], ("HW_NUMA_ROOT",), ({"VCPU": 2},)),
        P("numa1", "NUMA1_UUID", "cn1", "", cells[1], ("HW_NUMA_ROOT", "CUSTOM_FOO")),
        P("fpga0", "FPGA0_UUID", "numa0", "", {"FPGA": 1}),
        P("pgpu0", "PGPU0_UUID", "numa0", "", {"VGPU": 8}),
        P("fpga1_0", "FPGA1_0_UUID", "numa1", "", {"FPGA": 1}),
        P("fpga1_1", "FPGA1_1_UUID", "numa1", "", {"FPGA": 1}),
        P("sriov_agent", "SRIOV_AGENT_UUID", "cn1", "", {}, ("CUSTOM_VNIC_TYPE_DIRECT",)),
        P("esn1", "ESN1_UUID", "sriov_agent", "", {EGRESS: 10000}, ("CUSTOM_PHYSNET1",)),
        P("esn2", "ESN2_UUID", "sriov_agent", "", {EGRESS: 20000}, ("CUSTOM_PHYSNET2",)),
        P("ovs_agent", "OVS_AGENT_UUID", "cn1", "", {}, ("CUSTOM_VNIC_TYPE_NORMAL",)),
        P("br_int", "BR_INT_UUID", "ovs_agent", "", {EGRESS: 1000}, ("CUSTOM_PHYSNET0",)),
        P("cn2", "CN2_UUID", above[1], "a", {"VCPU": 8, "MEMORY_MB": coarse, "DISK_GB": 1000},
          ("CUSTOM_FOO",), ({"VCPU": 3},)),
        *(P(f"nic{n}", f"NIC{n}_UUID", "cn2", traits=("CUSTOM_HW_NIC_ROOT",)) for n in (1, 2, 3)),
        *(
            P(f"pf{name}", f"PF{name}_UUID", f"nic{card}", "", {"CUSTOM_VF": total},
              (f"CUSTOM_PHYSNET{network}",))
            for name, card, network, total in functions
        ),
    )  # fmt: skip


class NUMANetworkFixture(EmptiedServer):
    aggregates: ClassVar = {"a": "AGGA_UUID"}
    providers = _network(above=("", ""))


class DeepNUMANetworkFixture(EmptiedServer):
    aggregates: ClassVar = {"a": "AGGA_UUID"}
    providers = (P("gp1"), P("p1", under="gp1"), P("p2", under="gp1"), *_network(above=("p1", "p2")))


class NonSharedStorageFixture(EmptiedServer):
    aggregates: ClassVar = {"a": "AGGA_UUID", "b": "AGGB_UUID", "c": "AGGC_UUID"}
    providers = tuple(
        P(f"cn{n}", f"CN{n}_UUID", has={"VCPU": 24, "MEMORY_MB": 128 * 1024, "DISK_GB": 2000})
        for n in (1, 2, 3)
    )


_HOST = {"VCPU": 8, "MEMORY_MB": 4096}


class GranularFixture(EmptiedServer):
    aggregates: ClassVar = {"a": "AGGA", "b": "AGGB", "c": "AGGC"}
    classes = ("CUSTOM_NET_MBPS",)
    providers = (
        P("cn_left", "CN_LEFT", "", "a",
          {**_HOST, "DISK_GB": 500, "VGPU": 8, "SRIOV_NET_VF": 8, "CUSTOM_NET_MBPS": 4000},
          ("HW_CPU_X86_AVX", "HW_CPU_X86_AVX2", "HW_GPU_API_DXVA", "HW_NIC_DCB_PFC", "CUSTOM_FOO")),
        P("cn_middle", "CN_MIDDLE", "", "ab", {**_HOST, "SRIOV_NET_VF": 8, "CUSTOM_NET_MBPS": 4000},
          ("HW_CPU_X86_AVX", "HW_CPU_X86_AVX2", "HW_CPU_X86_SSE", "HW_NIC_ACCEL_TLS")),
        P("cn_right", "CN_RIGHT", "", "bc", {**_HOST, "DISK_GB": 500, "VGPU": {"total": 8, "max_unit": 2}},
          ("HW_CPU_X86_MMX", "HW_GPU_API_DXVA", "CUSTOM_DISK_SSD")),
        P("shr_disk_1", "SHR_DISK_1", "", "a", {"DISK_GB": 1000}, (SHARES, "CUSTOM_DISK_SSD")),
        P("shr_disk_2", "SHR_DISK_2", "", "ab", {"DISK_GB": 1000}, (SHARES,)),
        P("shr_net", "SHR_NET", "", "c", {"SRIOV_NET_VF": 16, "CUSTOM_NET_MBPS": 40000}, (SHARES,)),
    )  # fmt: skip


def _networked(number: int, *segments: str) -> tuple[P, ...]:
    host = f"compute{number}"
    direct = tuple(f"CUSTOM_VNIC_TYPE_{kind}" for kind in ("DIRECT", "DIRECT_PHYSICAL", "MACVTAP"))
    normal = ("CUSTOM_VNIC_TYPE_NORMAL",)
    switch, card = f"{host}:Open vSwitch agent", f"{host}:NIC Switch agent"
    single = len(segments) == 1

    def rate(amount: int) -> Amounts:
        return {EGRESS: amount if single else 1000, INGRESS: amount if single else 1000}

    ports: list[P] = []
    for at, segment in enumerate(segments):
        physical = f"CUSTOM_PHYSNET_{segment}"
        bridge = f"br-ex{at + 1 if at else ''}"
        ports += (
            P(f"{switch}:{bridge}", f"{host}:{bridge.replace('-', '_')}", switch, "", rate(5000),
              (*normal, physical)),
            P(f"{card}:enp129s0f{at}", f"{host}:pf{at}", card, "", rate(10000), (*direct, physical)),
        )  # fmt: skip
    return (
        P(host, host, has={**_HOST, "DISK_GB": 500}),
        P(switch, f"{host}:ovs_agent", host, "", {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 1000}, normal),
        P(card, f"{host}:sriov_agent", host, traits=direct),
        *ports,
    )


class NeutronQoSMultiSegmentFixture(EmptiedServer):
    providers = (
        *_networked(0, "OTHER"),
        *_networked(1, "MSN_S1"),
        *_networked(2, "MSN_S2"),
        *_networked(3, "MSN_S1", "MSN_S2"),
    )
