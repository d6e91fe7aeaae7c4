"""`berth boot`: the request of each option, and refusals before anything is published."""

import dataclasses
import io
from typing import Any

import pytest

from berth.kit import request_sense, terminal
from berth.kit.boot_options import BootOptions
from berth.kit.boot_requests import boot_request, image_named
from berth.kit.named_objects import ByName
from berth.settings import BadSetting
from bus.messages import BuildRequested
from bus.protocol import encode
from bus.requests import BuildSpec, Flavor, Hints
from ironic_sync.agent.core.node import instance_info
from tests.support.boot_command import Published, reply
from tests.support.boot_command import published as published
from tests.support.ids import uid
from tests.support.request_parts import field_of

ONE, TWO = uid(1, "e"), uid(2, "e")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host", "h"], {"wanted_host": "h"}),
        (["--force-host", "h"], {"forced_host": "h"}),
        (["--ignore-host", "a", "--ignore-host", "b"], {"ignore_hosts": ("a", "b")}),
        (["--prefer-trait", "A", "--prefer-trait", "B=-2"], {"preferred_traits": {"A": 1.0, "B": -2.0}}),
        (["--at-least", "2", "--count", "3"], {"at_least": 2}),
        (["--project", "p"], {"project": "p"}),
        (["--hint", f"same_host={ONE}", "--hint", f"same_host={TWO}", "--hint", 'query=["=", "$zone", "a"]'],
         {"hints": Hints(same_host=(ONE, TWO), query='["=", "$zone", "a"]')}),
        (["--hint", "build_near_host_ip=10.0.0.1", "--hint", "cidr=/16"],
         {"hints": Hints(build_near_host_ip="10.0.0.1", cidr="/16")}),
    ],
    ids=str,
)  # fmt: skip
def test_options_and_the_request_they_describe(
    published: Published, options: list[str], expected: dict[str, Any]
) -> None:
    assert reply(*options) == (0, "")
    assert {name: field_of(published.request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ([], ByName()),
        (["--aggregate", f"{ONE}, east", "--aggregate", "ssd"], ByName(aggregates=((ONE, "east"), ("ssd",)))),
        (["--not-aggregate", f"e,{TWO}", "--not-aggregate", "s"], ByName(not_aggregates=("e", TWO, "s"))),
    ],
    ids=str,
)  # fmt: skip
def test_names_that_are_resolved_before_publishing(
    published: Published, options: list[str], names: ByName
) -> None:
    assert reply(*options) == (0, "")
    assert dataclasses.replace(published.names, more=()) == names


@pytest.mark.parametrize(
    ("given", "name", "vcpus", "specs"),
    [
        ("vcpus=2", "f with vcpus=2", 2, {"trait:A": "required"}),
        ("trait:A=,resources:B=1,hw:numa_cpus.0=0,1,name=g", "g", 1,
         {"resources:B": "1", "hw:numa_cpus.0": "0,1"}),
    ],
)  # fmt: skip
def test_flavors_that_would_do_instead(
    published: Published, monkeypatch: pytest.MonkeyPatch, given: str, name: str, vcpus: int, specs: Any
) -> None:
    monkeypatch.setattr(request_sense, "sense_of", lambda request: ())
    assert reply("--flavor", "f", "--spec", "trait:A=required", "--or-else", given)[0] == 0
    flavor = Flavor(name=name, vcpus=vcpus, memory_mb=512, disk_gb=1, extra_specs=specs)
    assert published.request.or_else == (flavor,)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--flavor", "large"], "--flavor large: berth stores no flavors; only `metal` is known by its name"),
        (["--flavor", "mettal"], "known by its name. Did you mean metal? Describe the flavor with --vcpus"),
        (["--wait=soon"], "--wait soon: takes a time (90s, 30m, 12h, 7d), or nothing"),
        (
            ["--hint", "same_hots=x"],
            "--hint same_hots: there is no such hint, did you mean same_host?; there",
        ),
        (["--hint", "same_host=x"], "--hint same_host: 'x' is not the uuid of an instance"),
        (["--hint", "cidr=/8", "--hint", "cidr=/9"], "--hint cidr: is given twice"),
        (["--hint", "query"], "--hint takes KEY=VALUE, not 'query'"),
        (["--aggregate", "a,,b"], "--aggregate: 'a,,b' is not a list of names or uuids of aggregates"),
        (["--prefer-trait", "A=much"], "--prefer-trait A=much: 'much' is not a weight"),
        (["--prefer-trait", "fast"], "--prefer-trait fast: 'fast' is no trait (A to Z, 0 to 9, _)"),
        (["--or-else", "vcpu=2"], "--or-else vcpu=: did you mean vcpus=?"),
        (["--or-else", "nowhere.json"], "--or-else nowhere.json: neither KEY=VALUE nor a file"),
        (["--or-else", "vcpus=two"], "--or-else vcpus=two: takes a whole number"),
        (["--or-else", "trait:A="], "--or-else trait:A=: the flavor has no such extra spec to leave out"),
        # The scheduler would refuse these as well
        (["--or-else", "resources:VCPU=few"], "or_else[0].extra_specs['resources:VCPU']: 'few' is no whole"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_before_publishing(
    published: Published, options: list[str], sentence: str
) -> None:
    code, sent = reply(*options)
    assert code != 0 and sentence in sent
    assert not hasattr(published, "request")


def test_options_without_effect_are_noted_and_the_request_is_published(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = io.StringIO()
    monkeypatch.setattr(terminal, "complain", terminal.console(sent))
    assert reply("--spec", "resource:VGPU=1")[0] == 0
    assert sent.getvalue() == (
        "note: flavor.extra_specs: resource:VGPU: not known here; did you mean resources:VGPU?\n"
    )
    assert isinstance(published.request, BuildRequested) and encode(published.request)


def test_image_properties_reach_ironic_unchanged() -> None:
    properties = [
        "image_source=http://img/debian",
        "image_checksum=0123",
        "kernel=file:///k=1",
        "os_distro=debian",
    ]
    metal = BootOptions(
        vcpus=0, memory_mb=0, disk_gb=20, flavor="metal", extra_spec=["capabilities:boot_mode=uefi"],
        image="debian", image_property=properties,
    )  # fmt: skip
    request = boot_request(metal)
    assert request.image == image_named("debian", properties)
    info = instance_info(BuildSpec(flavor=request.flavor, image=request.image))
    expected = {
        "image_source": "http://img/debian",
        "kernel": "file:///k=1",
        "root_gb": "20",
        "capabilities": {"boot_mode": "uefi"},
    }
    assert {name: info[name] for name in expected} == expected
    assert "os_distro" not in info
    assert request.flavor.extra_specs["resources:DISK_GB"] == "0", "a node has one resource"


@pytest.mark.parametrize(
    ("name", "properties", "problem"),
    [
        ("debian", ["kernel"], "--image-property takes KEY=VALUE, not 'kernel'"),
        ("debian", ["=k"], "--image-property takes KEY=VALUE, not '=k'"),
        ("", ["kernel=k"], "name it with --image"),
    ],
)
def test_invalid_images_are_refused(name: str, properties: list[str], problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        image_named(name, properties)
