"""Simulated agents: planned faults by seed, durations by name, fleets of hosts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bus.messages import BuildOrdered
from bus.reports import Inventory
from bus.requests import BuildSpec, Flavor, Image
from compute_sim.core.device_book import DeviceBook
from compute_sim.core.drivers import (
    DeviceDriver,
    Driver,
    FlatDriver,
    HostDevice,
    NumaDriver,
    PhysicalFunction,
    PhysicalGpu,
    SriovDriver,
    VgpuDriver,
    build_tree,
)
from compute_sim.core.faults import CrashPlan, Durations, FaultPlan
from compute_sim.core.provider_tree import ProviderTree, TreeMistake, child_id
from compute_sim.guests import MAX_CACHED, Guests, guest_of
from compute_sim.machines import BadMachine, machines
from tests.support.ids import uid

MANY = [uid(number, "b") for number in range(4000)]


def share(plan: FaultPlan, kind: str, attempt: int = 1) -> float:
    return sum(plan.fate(build, attempt).kind == kind for build in MANY) / len(MANY)


def test_one_build_in_ten_fails_on_its_first_host_and_succeeds_on_the_next() -> None:
    plan = FaultPlan(seed=1, reschedule=0.1)
    assert share(plan, "reschedule") == pytest.approx(0.1, abs=0.02)
    assert share(plan, "built") == pytest.approx(0.9, abs=0.02)
    assert share(plan, "built", attempt=2) == 1.0


def test_shares_beyond_the_whole_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        FaultPlan(reschedule=0.8, abort=0.3)


@pytest.mark.parametrize(
    ("words", "mean", "least"),
    [
        ("constant:0.5", 0.5, 0.5),
        ("uniform:1,3", 2.0, 1.0),
        ("exponential:0.2", 0.2, 0.0),
        ("lognormal:1,0.5", 1.133, 0.0),  # exp(0.5² / 2)
    ],
)
def test_build_times_follow_their_distribution(words: str, mean: float, least: float) -> None:
    plan = FaultPlan(seed=3, durations=Durations.parse(words))
    seconds = [plan.fate(build, 1).seconds for build in MANY]
    assert sum(seconds) / len(seconds) == pytest.approx(mean, rel=0.06)
    assert min(seconds) >= least


@pytest.mark.parametrize("words", ["", "constant", "normal:1", "uniform:1", "exponential:-1", "constant:x"])
def test_invalid_durations_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Durations.parse(words)


def test_crashes_come_about_as_often_as_planned_and_the_same_every_time() -> None:
    plan = CrashPlan(seed=1, orders=50)
    gaps = [plan.next_after("agent1", crash) for crash in range(500)]
    assert sum(gaps) / len(gaps) == pytest.approx(50, rel=0.15)
    assert gaps == [plan.next_after("agent1", crash) for crash in range(500)]
    assert CrashPlan().next_after("agent1", 0) == 0


def an_order(build: int, attempt: int = 1, root: int = 1, image: Image | None = None) -> BuildOrdered:
    spec = BuildSpec(flavor=Flavor(name="f"), image=image)
    return BuildOrdered(
        build=uid(build, "b"), attempt=attempt, cell="c", agent="a", root=uid(root, "c"), host="h", spec=spec
    )


def test_a_host_counts_its_guests_and_keeps_their_images() -> None:
    guests, scsi = Guests(), {"hw_disk_bus": "scsi"}
    debian, other = Image(name="debian", properties=scsi), Image(name="other", properties={**scsi, "a": "b"})
    for order in (an_order(1, image=debian), an_order(2, image=other), an_order(3, root=2), an_order(4)):
        assert guests.add(guest_of(order))
        assert not guests.add(guest_of(order))  # it is there once
    host = guests.on[uid(1, "c")]
    assert (host.instances, list(host.images)) == (3, ["debian", "other"])
    assert dict(host.properties) == {"hw_disk_bus=scsi": 2, "a=b": 1}
    guests.remove(uid(2, "b"), range(2))
    assert (host.instances, list(host.images)) == (2, ["debian", "other"])
    assert dict(host.properties) == {"hw_disk_bus=scsi": 1}
    for number in range(MAX_CACHED + 1):
        guests.add(guest_of(an_order(1, attempt=number + 2, image=Image(name=f"image{number}"))))
    assert next(iter(host.images)) == "image1" and len(host.images) == MAX_CACHED
    guests.remove(uid(1, "b"), range(100))
    assert host.instances == 1
    assert {(record.build, record.root) for some in guests.there.values() for record in some.values()} == {
        (uid(3, "b"), uid(2, "c")),
        (uid(4, "b"), uid(1, "c")),
    }


ROOT = uid(1, "c")
HAS = {"VCPU": Inventory(total=8, allocation_ratio=4.0), "DISK_GB": Inventory(total=9)}
FLAT = FlatDriver(HAS, ("COMPUTE_NODE",))
BARE = NumaDriver(cells=1, vcpus=1, vcpu_ratio=1, pcpus=0, memory_mb=0, pages={}, disk_gb=0, traits=())
FPGAS = HostDevice(device="f0", resource_class="FPGA", total=2, traits=("CUSTOM_X",))
NUMA = NumaDriver(vcpus=4, pcpus=2, memory_mb=1024, reserved_mb=24, pages={"2MB": 5}, disk_gb=10)
PF = PhysicalFunction(device="p0", vfs=4, network="phys-net.1", cell=1)
GPU = PhysicalGpu(device="g0", types={"nv-1": 4, "nv-2": 2})


def picture(tree: ProviderTree) -> list[str]:
    lines = []
    depth: dict[str | None, int] = {None: -1}
    for provider in tree.providers:
        depth[provider.id] = depth[provider.parent] + 1
        has = [f"{inventory.capacity} {name}" for name, inventory in provider.inventories.items()]
        lines.append(
            " ".join(["  " * depth[provider.id] + provider.name + ":", *has, *sorted(provider.traits)])
        )
    return lines


CELL = "4 SRIOV_NET_VF CUSTOM_PF_WITH_4_VFS CUSTOM_PHYSNET_PHYS_NET_1 HW_NIC_SRIOV"
NUMA_ROOT = "h: 10 DISK_GB COMPUTE_NODE HW_CPU_HYPERTHREADING"
OF_A_CELL = "16 VCPU 2 PCPU 1000 MEMORY_MB 5 CUSTOM_MEMORY_PAGES_2MB HW_NUMA_ROOT"
TREES: dict[str, tuple[Sequence[Driver], list[str]]] = {
    "a flat host": ([FLAT], ["h: 32 VCPU 9 DISK_GB COMPUTE_NODE"]),
    "two NUMA cells": ([NUMA], [NUMA_ROOT, f"  h_numa0: {OF_A_CELL}", f"  h_numa1: {OF_A_CELL}"]),
    "a PF below its NUMA cell": (
        [NUMA, SriovDriver(functions=(PF,))],
        [NUMA_ROOT, f"  h_numa0: {OF_A_CELL}", f"  h_numa1: {OF_A_CELL}", f"    h_p0: {CELL}"],
    ),
    "a PF of a flat host": (
        [FLAT, SriovDriver(functions=(PF,))],
        ["h: 32 VCPU 9 DISK_GB COMPUTE_NODE", f"  h_p0: {CELL}"],
    ),
    "a GPU that can be cut into two types": (
        [FLAT, VgpuDriver(gpus=(GPU,))],
        [
            "h: 32 VCPU 9 DISK_GB COMPUTE_NODE",
            "  h_g0:",
            "    h_g0_nv-1: 4 VGPU CUSTOM_EXCLUDES_SIBLINGS CUSTOM_NV_1",
            "    h_g0_nv-2: 2 VGPU CUSTOM_EXCLUDES_SIBLINGS CUSTOM_NV_2",
        ],
    ),
    "a device of its own": (
        [BARE, DeviceDriver(devices=(FPGAS,))],
        ["h:", "  h_numa0: 1 VCPU HW_NUMA_ROOT", "    h_f0: 2 FPGA CUSTOM_X"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("drivers, lines", TREES.values(), ids=TREES.keys())
def test_the_tree_of_a_host(drivers: Sequence[Driver], lines: list[str]) -> None:
    assert picture(build_tree(ROOT, "h", drivers)) == lines


def test_only_the_root_of_a_disabled_host_has_the_trait() -> None:
    tree = build_tree(ROOT, "h", [NUMA], disabled=True)
    assert [provider.name for provider in tree.providers if "COMPUTE_STATUS_DISABLED" in provider.traits] == [
        "h"
    ]


MISTAKES: dict[str, tuple[Sequence[Driver], str]] = {
    "no such cell": (
        [NUMA, SriovDriver(functions=(PhysicalFunction(device="p0", cell=7),))],
        "h: sriov.p0.cell: there is no NUMA cell 7",
    ),
    "a PF without VFs": (
        [FLAT, SriovDriver(functions=(PhysicalFunction(device="p0", vfs=0),))],
        "h: sriov.p0.vfs: 0; one at least",
    ),
    "a GPU without types": (
        [FLAT, VgpuDriver(gpus=(PhysicalGpu(device="g", types={}),))],
        "h: vgpu.g.types: one type at least, and one of each at least",
    ),
    "types that read alike": (
        [FLAT, VgpuDriver(gpus=(PhysicalGpu(device="g", types={"a-b": 1, "a.b": 1}),))],
        "h: vgpu.g.types: two that read alike in a trait",
    ),
    "two devices of a name": (
        [FLAT, SriovDriver(functions=(PF, PF))], "h_p0: there are two providers of this name",
    ),
    "two drivers of one class": ([FLAT, FLAT], "h: inventories.VCPU: two drivers set it"),
    "a class that is none": (
        [FlatDriver({"RAM": Inventory(total=1)})],
        "h: inventories.RAM: no such resource class; custom names begin with CUSTOM_",
    ),
    "a trait that is none": ([FlatDriver({}, ("FAST",))], "h: traits: no such trait FAST"),
    "nothing at all of a class": ([FlatDriver({"VCPU": Inventory(total=0)})], "h: inventories.VCPU.total: 0"),
    "more reserved than there is": (
        [FlatDriver({"VCPU": Inventory(total=1, reserved=2)})],
        "h: inventories.VCPU.reserved: 2 is not from 0 to the total, 1",
    ),
    "pages of no size": ([NumaDriver(pages={"big": 1})], "h: numa.pages: 'big' is no size, as 2MB or 1GB"),
    "no cells": ([NumaDriver(cells=0)], "h: numa.cells: 0; a host has at least one"),
}  # fmt: skip


@pytest.mark.parametrize("drivers, says", MISTAKES.values(), ids=MISTAKES.keys())
def test_an_invalid_tree_is_refused_with_provider_and_field(drivers: Sequence[Driver], says: str) -> None:
    with pytest.raises(TreeMistake) as mistake:
        build_tree(ROOT, "h", drivers)
    assert says in str(mistake.value)


DEVICE_ROOT = uid(1, "c")
FUNCTION = child_id(DEVICE_ROOT, "h_p0")
FLAT_WITH_RESERVE = FlatDriver({"VCPU": Inventory(total=2, reserved=1, allocation_ratio=4.0)})
FOUR_VFS = SriovDriver(functions=(PhysicalFunction(device="p0", vfs=4),))
ONE, TWO = (uid(1, "b"), 1), (uid(2, "b"), 1)


@pytest.fixture
def book() -> DeviceBook:
    book = DeviceBook()
    book.set_tree(build_tree(DEVICE_ROOT, "h", [FLAT_WITH_RESERVE, FOUR_VFS]))
    return book


def test_released_devices_are_free_and_a_guest_counts_once(book: DeviceBook) -> None:
    whole = {FUNCTION: {"SRIOV_NET_VF": 4}}
    for _ in range(2):
        assert book.refusal(ONE, whole) == ""
        book.hold(ONE, whole)
    assert book.in_use(FUNCTION) == {"SRIOV_NET_VF": 4}
    for _ in range(2):
        book.release(ONE)
    assert book.in_use(FUNCTION) == {}
    assert book.refusal(TWO, whole) == ""


def test_removed_devices_are_refused_until_they_return(book: DeviceBook) -> None:
    book.set_tree(build_tree(DEVICE_ROOT, "h", [FLAT_WITH_RESERVE]))
    assert book.refusal(ONE, {FUNCTION: {"SRIOV_NET_VF": 1}}) == "h_p0 is not there any more"
    book.set_tree(build_tree(DEVICE_ROOT, "h", [FLAT_WITH_RESERVE, FOUR_VFS]))
    assert book.refusal(ONE, {FUNCTION: {"SRIOV_NET_VF": 1}}) == ""


def names(machine_named: str, *files: str) -> list[str]:
    (machine,) = machines([machine_named], *files)
    return [provider.name for provider in build_tree(ROOT, "h", machine.drivers).providers]


WRONG = {
    "not TOML": ("[", "not TOML"),
    "no drivers": ("[a]\n", "a.drivers: names its drivers: numa, sriov, vgpu, devices"),
    "an unknown driver": ('[a]\ndrivers=["x"]', "a.drivers: no such driver: 'x'; there are: flat, numa"),
    "a field that is none": ('[a]\ndrivers=["numa"]\nnuma={sockets=2}',
        "a.numa: Object contains unknown field `sockets`"),
    "a table of no driver": ('[a]\ndrivers=["numa"]\nvgpu={}', "a.vgpu: is none of its drivers (numa)"),
    "an infinite ratio": ('[a]\ndrivers=["numa"]\nnuma={vcpu_ratio=inf}',
        "a.numa.vcpu_ratio: Expected `float` <="),
    "too many cells": ('[a]\ndrivers=["numa"]\nnuma={cells=2147483647}',
        "a.numa.cells: Expected `int` <= 64"),
    "20,000 nested lists": ("a = " + "[" * 20_000, "not TOML: "),
    "two that tell of processors": ('[a]\ndrivers=["flat","numa"]', "a.drivers: flat and numa both"),
}  # fmt: skip


@pytest.mark.parametrize("text, says", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_machine_file_is_refused_with_the_field(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(text)
    with pytest.raises(BadMachine) as refused:
        machines(["flat"], str(file))
    assert f"{file}: {says}" in str(refused.value)


def test_a_machine_that_contradicts_itself_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "machines.toml"
    file.write_text('[a]\ndrivers=["numa","sriov"]\nnuma={cells=1}\nsriov={functions=[{device="p",cell=3}]}')
    with pytest.raises(BadMachine, match=r"a: HOST: sriov\.p\.cell: there is no NUMA cell 3"):
        machines(["a"], str(file))


@pytest.mark.parametrize("name, says", [("nuam", "there is no machine 'nuam'; there are: flat, numa")])
def test_an_unknown_machine_name_is_refused(name: str, says: str) -> None:
    with pytest.raises(BadMachine) as refused:
        machines([name])
    assert says in str(refused.value)


# provider.yaml

HEAD = "meta: {schema_version: '1.0'}\nproviders:\n"


def configured(tmp_path: Path, text: str) -> str:
    file = tmp_path / "provider.yaml"
    file.write_text(text)
    return str(file)


EXAMPLE = """
meta:
  schema_version: '1.0'
providers:
  - identification: {uuid: $COMPUTE_NODE}
    inventories:
      additional:
        - CUSTOM_LICENCE:
            {total: 10, reserved: 1, min_unit: 2, max_unit: 4, step_size: 2, allocation_ratio: 1.5}
        - CUSTOM_DONGLE: {total: 3}
    traits:
      additional: [CUSTOM_RACK, CUSTOM_COLD]
  - identification: {name: h_numa1}
    traits: {additional: [CUSTOM_NEAR]}
"""


def test_a_directory_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(A_TRAIT.format("h", "CUSTOM_A"))
    (tmp_path / "b.yaml").write_text(A_TRAIT.format("x", "CUSTOM_B"))
    (machine,) = machines(["numa"], "", str(tmp_path))
    assert "CUSTOM_A" in build_tree(ROOT, "h", machine.drivers)["h"].traits
    (tmp_path / "c.yaml").write_text(HEAD + "- {identification: {name: h}}\n")
    with pytest.raises(BadMachine, match=r"c\.yaml: h is in another file, too"):
        machines(["numa"], "", str(tmp_path))


A_TRAIT = (
    HEAD.replace("{", "{{").replace("}", "}}")
    + "- {{identification: {{name: {}}}, traits: {{additional: [{}]}}}}\n"
)
INVENTORY = "- identification: {{name: h}}\n  inventories: {{additional: [{{{}}}]}}\n"
WRONG_CONFIG = {
    "not YAML": ("a: [", "not YAML"),
    "no meta": ("providers: []", "the file: Object missing required field `meta`"),
    "another version": ("meta: {schema_version: '2.0'}", "meta.schema_version: '2.0': only versions from"),
    "a field that is none": (HEAD + "- {identification: {name: h}, trait: {}}",
        "providers[0].trait: there is no such"),
    "a part that is none": (HEAD + "- {identification: {name: h}, traits: {remove: []}}",
        "providers[0].traits.remove: there is no such"),
    "nobody": (HEAD + "- {identification: {}}", "providers[0].identification: names a uuid or a name"),
    "two ways to say who": (HEAD + f"- {{identification: {{name: h, uuid: {ROOT}}}}}",
        "providers[0].identification: names a uuid or a name"),
    "no uuid": (HEAD + "- {identification: {uuid: me}}",
        "providers[0].identification.uuid: Expected `str` matching"),
    "said twice": (HEAD + "- {identification: {name: h}}\n- {identification: {name: h}}",
        "providers[1].identification: h is there twice"),
    "no total": (HEAD + INVENTORY.format("CUSTOM_A: {reserved: 1}"), "missing required field `total`"),
    "a total of nothing": (HEAD + INVENTORY.format("CUSTOM_A: {total: 0}"), "total: Expected `int` >= 1"),
    "a class that is the drivers'": (HEAD + INVENTORY.format("VCPU: {total: 1}"),
        "inventories.additional[0].VCPU: only classes of your own"),
    "more reserved than there is": (HEAD + INVENTORY.format("CUSTOM_A: {total: 1, reserved: 2}"),
        "providers[0].inventories.additional[0].CUSTOM_A.reserved: 2 is more than the total, 1"),
    "an infinite ratio": (HEAD + INVENTORY.format("CUSTOM_A: {total: 1, allocation_ratio: .inf}"),
        "allocation_ratio: Expected `float` <= 3.40282e+38"),
    "20,000 nested lists": ("[" * 20_000 + "]" * 20_000, "not YAML: "),
    "a number of 5,000 digits": ("meta: " + "1" * 5_000, "not YAML: "),
    "a trait that is the drivers'": (
        HEAD + "- {identification: {name: h}, traits: {additional: [HW_CPU_X86_AVX]}}",
        "providers[0].traits.additional: HW_CPU_X86_AVX: only traits of your own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text, says", WRONG_CONFIG.values(), ids=WRONG_CONFIG.keys())
def test_an_invalid_provider_yaml_is_refused_with_the_field(tmp_path: Path, text: str, says: str) -> None:
    file = configured(tmp_path, text)
    with pytest.raises(BadMachine) as refused:
        machines(["numa"], "", file)
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    text = EXAMPLE.replace("'1.0'", "'1.7'") + "    colour: red\n"
    assert machines(["numa"], "", configured(tmp_path, text))


def test_a_provider_yaml_cannot_override_a_driver(tmp_path: Path) -> None:
    twice = (
        HEAD + "- identification: {name: HOST_fpga0}\n  inventories: {additional: [{CUSTOM_A: {total: 1}}]}\n"
    )
    both = tmp_path / "machines.toml"
    both.write_text(
        '[a]\ndrivers=["devices"]\ndevices={devices=[{device="fpga0", resource_class="CUSTOM_A"}]}'
    )
    with pytest.raises(BadMachine, match=r"a: HOST_fpga0: inventories\.CUSTOM_A: two drivers set it"):
        machines(["a"], str(both), configured(tmp_path, twice))


@pytest.mark.parametrize("which", [1, 2])
def test_a_missing_file_is_refused(tmp_path: Path, which: int) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(BadMachine, match="none: cannot be read: No such file"):
        machines(["flat"], *(("", missing) if which == 2 else (missing,)))
