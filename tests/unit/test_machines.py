"""Kinds of machines by name and file: machines TOML and provider.yaml."""

from pathlib import Path

import pytest

from compute_sim import BadMachine, Hardware, fleet, machines
from compute_sim.core.drivers import build_tree
from compute_sim.machines import BUILT_IN
from tests.support.ids import uid

ROOT = uid(1, "c")


def names(machine_named: str, *files: str) -> list[str]:
    (machine,) = machines([machine_named], *files)
    return [provider.name for provider in build_tree(ROOT, "h", machine.drivers).providers]


def test_those_built_in() -> None:
    assert {name: names(name) for name in BUILT_IN} == {
        "flat": ["h"],
        "numa": ["h", "h_numa0", "h_numa1"],
        "sriov": ["h", "h_numa0", "h_numa1", "h_ens1f0", "h_ens2f0"],
        "vgpu": ["h", "h_gpu0", "h_gpu0_nvidia-35", "h_gpu0_nvidia-37", "h_gpu1", "h_gpu1_nvidia-35"],
        "devices": ["h", "h_numa0", "h_numa1", "h_fpga0", "h_pgpu0"],
    }


def test_they_are_dealt_out_over_the_hosts() -> None:
    (agent,) = fleet(1, 4, hardware=Hardware(machines=machines(["flat", "numa"])))
    assert [bool(host.inventory) for host in agent.hosts] == [True, False] * 2
    trees = [build_tree(host.root, host.host, host.all_drivers) for host in agent.hosts]
    assert [len(tree.providers) for tree in trees] == [1, 3, 1, 3]
    assert all("COMPUTE_NODE" in tree[tree.name].traits for tree in trees)


def test_a_file_describes_more_of_them(tmp_path: Path) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(
        """
        [edge]
        drivers = ["sriov", "numa"]
        numa = {cells = 1, pages = {"2MB" = 4}}
        [edge.sriov]
        functions = [{device = "x", vfs = 2, network = "n"}]
        [plain]
        drivers = ["flat"]
        """
    )
    assert names("edge", str(file)) == ["h", "h_numa0", "h_x"]
    assert names("plain", str(file)) == ["h"]
    assert names("vgpu", str(file))[1] == "h_gpu0"


WRONG = {
    "not TOML": ("[", "not TOML"),
    "no drivers": ("[a]\n", "a.drivers: names its drivers: numa, sriov, vgpu, devices"),
    "an unknown driver": ('[a]\ndrivers=["x"]', "a.drivers: there is no driver 'x'; there are: flat, numa"),
    "a field that is none": ('[a]\ndrivers=["numa"]\nnuma={sockets=2}',
        "a.numa: Object contains unknown field `sockets`"),
    "a word for a number": ('[a]\ndrivers=["numa"]\nnuma={cells="2"}',
        "a.numa.cells: Expected `int`, got `str`"),
    "a field deep inside": ('[a]\ndrivers=["sriov"]\nsriov={functions=[{device="p", vfs=2.5}]}',
        "a.sriov.functions[0].vfs: Expected"),
    "a table of no driver": ('[a]\ndrivers=["numa"]\nvgpu={}', "a.vgpu: is none of its drivers (numa)"),
    "an infinite ratio": ('[a]\ndrivers=["numa"]\nnuma={vcpu_ratio=inf}',
        "a.numa.vcpu_ratio: Expected `float` <="),
    "a ratio that is no number": ('[a]\ndrivers=["numa"]\nnuma={vcpu_ratio=nan}',
        "a.numa.vcpu_ratio: Expected"),
    "too many cells": ('[a]\ndrivers=["numa"]\nnuma={cells=2147483647}',
        "a.numa.cells: Expected `int` <= 64"),
    "20,000 nested lists": ("a = " + "[" * 20_000, "not TOML: "),
    "two that tell of processors": ('[a]\ndrivers=["flat","numa"]', "a.drivers: flat and numa both"),
}  # fmt: skip


@pytest.mark.parametrize("text, says", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_with_it_is_said_by_field(tmp_path: Path, text: str, says: str) -> None:
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
def test_a_name_that_is_none(name: str, says: str) -> None:
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


def test_an_operators_file_adds_to_what_drivers_say(tmp_path: Path) -> None:
    (machine,) = machines(["numa"], "", configured(tmp_path, EXAMPLE))
    tree = build_tree(ROOT, "h", machine.drivers)
    licence, dongle = (tree["h"].inventories[f"CUSTOM_{name}"] for name in ("LICENCE", "DONGLE"))
    assert (licence.total, licence.reserved, licence.max_unit, licence.step_size) == (10, 1, 4, 2)
    assert (licence.min_unit, licence.allocation_ratio) == (2, 1.5)
    assert (dongle.total, dongle.max_unit) == (3, 3)
    assert {"CUSTOM_RACK", "CUSTOM_COLD", "COMPUTE_NODE"} <= tree["h"].traits
    assert "CUSTOM_NEAR" in tree["h_numa1"].traits - tree["h_numa0"].traits


def test_who_is_named_is_not_compute_node_as_well(tmp_path: Path) -> None:
    text = EXAMPLE.replace("{name: h_numa1}", f"{{uuid: {ROOT.upper()}}}")
    (machine,) = machines(["numa"], "", configured(tmp_path, text))
    assert "CUSTOM_NEAR" in build_tree(ROOT, "h", machine.drivers)["h"].traits
    assert "CUSTOM_RACK" not in build_tree(ROOT, "h", machine.drivers)["h"].traits
    assert "CUSTOM_RACK" in build_tree(uid(2, "c"), "g", machine.drivers)["g"].traits


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
    "another version": ("meta: {schema_version: '2.0'}", "meta.schema_version: '2.0': only 1.0 and later"),
    "a version that is a number": ("meta: {schema_version: 1.0}", "meta.schema_version: Expected `str`"),
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
    "an unknown word of an inventory": (HEAD + INVENTORY.format("CUSTOM_A: {total: 1, ratio: 2}"),
        "unknown field `ratio`"),
    "a class that is the drivers'": (HEAD + INVENTORY.format("VCPU: {total: 1}"),
        "inventories.additional[0].VCPU: only classes of your own"),
    "more reserved than there is": (HEAD + INVENTORY.format("CUSTOM_A: {total: 1, reserved: 2}"),
        "providers[0].inventories.additional[0].CUSTOM_A.reserved: 2 is more than the total, 1"),
    "an infinite ratio": (HEAD + INVENTORY.format("CUSTOM_A: {total: 1, allocation_ratio: .inf}"),
        "allocation_ratio: Expected `float` <= 3.40282e+38"),
    "a ratio that is no number": (HEAD + INVENTORY.format("CUSTOM_A: {total: 1, allocation_ratio: .nan}"),
        "allocation_ratio: Expected `float` > 0"),
    "20,000 nested lists": ("[" * 20_000 + "]" * 20_000, "not YAML: "),
    "a number of 5,000 digits": ("meta: " + "1" * 5_000, "not YAML: "),
    "a trait that is the drivers'": (
        HEAD + "- {identification: {name: h}, traits: {additional: [HW_CPU_X86_AVX]}}",
        "providers[0].traits.additional: HW_CPU_X86_AVX: only traits of your own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text, says", WRONG_CONFIG.values(), ids=WRONG_CONFIG.keys())
def test_what_is_wrong_with_a_provider_yaml_is_said_by_field(tmp_path: Path, text: str, says: str) -> None:
    file = configured(tmp_path, text)
    with pytest.raises(BadMachine) as refused:
        machines(["numa"], "", file)
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)


def test_a_later_version_may_have_more_fields(tmp_path: Path) -> None:
    text = EXAMPLE.replace("'1.0'", "'1.7'") + "    colour: red\n"
    assert machines(["numa"], "", configured(tmp_path, text))


def test_the_file_may_not_say_what_a_driver_says(tmp_path: Path) -> None:
    twice = (
        HEAD + "- identification: {name: HOST_fpga0}\n  inventories: {additional: [{CUSTOM_A: {total: 1}}]}\n"
    )
    both = tmp_path / "machines.toml"
    both.write_text(
        '[a]\ndrivers=["devices"]\ndevices={devices=[{device="fpga0", resource_class="CUSTOM_A"}]}'
    )
    with pytest.raises(BadMachine, match=r"a: HOST_fpga0: inventories\.CUSTOM_A: two drivers say it"):
        machines(["a"], str(both), configured(tmp_path, twice))


@pytest.mark.parametrize("which", [1, 2])
def test_a_file_that_is_not_there(tmp_path: Path, which: int) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(BadMachine, match="none: cannot be read: No such file"):
        machines(["flat"], *(("", missing) if which == 2 else (missing,)))
