"""The weighers and the settings of the feature: names, order, options and values."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.kit import BadSetting, Settings, sense_of
from berth.kit.testing import request_options
from features.guest_hardware.core.aliases import PciAlias, pci_aliases
from features.guest_hardware.filters import devices, pci
from features.guest_hardware.settings import GuestHardwareSettings
from scheduler_worker.core.extension import Alternative, HostFacts, OneHost
from scheduler_worker.extension import ChoicePolicy
from tests.support.random_hosts import assert_array_agrees, clouds, random_alternatives
from tests.support.rule_builders import a_wish, flavor, the_facts
from tests.support.scheduler_builders import a_request

GPU = {"pci_aliases": {"gpu": "CUSTOM_GPU CUSTOM_HBM"}}


@pytest.mark.parametrize(
    ("free", "options", "value"),
    [
        ({"VCPU": 8}, {}, 0),
        ({"PGPU": 3, "VGPU": 4}, {}, -7),
        ({"PGPU": 3, "CUSTOM_GPU": 4}, {"classes": ["CUSTOM_GPU"]}, -4),
        ({"PCI_DEVICE": 5000}, {}, -5000),
    ],
    ids=str,
)
def test_free_devices_are_counted(free: dict[str, int], options: dict[str, Any], value: float) -> None:
    assert pci(**options).value(OneHost(the_facts(free=free)), a_wish()) == value


def test_the_classes_of_devices_are_options() -> None:
    policy = ChoicePolicy.from_names([], ["pci"], options={"pci": {"classes": "PGPU, VGPU"}})
    host = OneHost(the_facts(free={"PGPU": 1, "VGPU": 2, "PCI_DEVICE": 4}))
    assert policy.weighers[0].value(host, a_wish()) == -3


def test_hosts_are_not_compared_by_their_devices() -> None:
    assert devices().value(OneHost(the_facts()), a_wish()) == 0


@settings(max_examples=40, deadline=None)
@given(cloud=clouds(), alternative=random_alternatives(), data=st.data())
def test_the_weighers_arrays_agree_with_single_hosts(
    cloud: list[HostFacts], alternative: Alternative, data: st.DataObject
) -> None:
    options: list[dict[str, Any]] = [{}, {"classes": []}, {"classes": ["VCPU"]}]
    assert_array_agrees(pci(**data.draw(st.sampled_from(options))), cloud, alternative)
    assert_array_agrees(devices(), cloud, alternative)


@pytest.mark.parametrize(
    ("text", "alias"),
    [
        ("CUSTOM_GPU", PciAlias("CUSTOM_GPU")),
        ("CUSTOM_A CUSTOM_B  CUSTOM_C numa=required",
         PciAlias("CUSTOM_A", ("CUSTOM_B", "CUSTOM_C"), "required")),
        ("numa=socket CUSTOM_GPU", PciAlias("CUSTOM_GPU", (), "socket")),
    ],
)  # fmt: skip
def test_pci_aliases_are_read(text: str, alias: PciAlias) -> None:
    assert pci_aliases({"gpu": text}) == {"gpu": alias}


@pytest.mark.parametrize(
    ("given", "name", "why"),
    [
        ({"image_traits": ("type", "data")}, "image_traits", "'data' is neither type nor metadata"),
        ({"pci_aliases": {"gpu": "gpu"}}, "pci_aliases", "takes a resource class, traits, and once"),
        ({"pci_aliases": {"gpu": "GPU numa=near"}}, "pci_aliases", "gpu: numa=near is none of legacy"),
        ({"pci_aliases": {"g.u": "GPU"}}, "pci_aliases", "'g.u' is no name: up to 48 letters"),
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(given: dict[str, Any], name: str, why: str) -> None:
    refused: dict[str, str] = {}
    GuestHardwareSettings(**given).check(refused.__setitem__)
    assert [*refused] == [name] and refused[name].startswith(why)


def test_schedulers_read_flavors_by_the_settings() -> None:
    (reader,) = (each for each in request_options(Settings().having(**GPU)).readers if each.specs)
    assert len(reader.alternatives(flavor({"pci_passthrough:alias": "gpu"}), None, "flavor")) == 1
    with pytest.raises(ValueError, match="there is no alias 'nic'"):
        reader.alternatives(flavor({"pci_passthrough:alias": "nic"}), None, "flavor")


def test_a_client_checks_flavors_without_the_settings_of_schedulers() -> None:
    specs = {"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "whatever:1"}
    assert sense_of(a_request(flavor=flavor(specs))) == ()
    with pytest.raises(BadSetting, match=r"or_else\[0\]\.vcpus: 4 does not divide by 3"):
        sense_of(a_request(or_else=(flavor({"hw:numa_nodes": "3"}),)))
