"""The fields of the what-if form or URL, and errors by field."""

from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from bus.messages import BuildRequested
from bus.requests import Flavor, Hints
from control_room.core.what_if_form import InvalidForm, WhatIfRequest, address_of, form_texts, parse_request
from tests.support.ids import uid

USUAL = {"vcpus": "4", "memory_mb": "4096"}


def read(**said: str) -> WhatIfRequest | None:
    return parse_request(form_texts(said))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, WhatIfRequest(vcpus=4, memory_mb=4096, disk_gb=0)),
        (
            {"count": "10", "at_least": "3"},
            WhatIfRequest(vcpus=4, memory_mb=4096, disk_gb=0, count=10, at_least=3),
        ),
        (
            {
                "resources": "CUSTOM_GPU:1, VGPU:2",
                "traits": "CUSTOM_A !CUSTOM_B",
                "specs": "hw:numa_nodes=2\n",
            },
            WhatIfRequest(
                vcpus=4,
                memory_mb=4096,
                disk_gb=0,
                extra_specs=(
                    "resources:CUSTOM_GPU=1",
                    "resources:VGPU=2",
                    "trait:CUSTOM_A=required",
                    "trait:CUSTOM_B=forbidden",
                    "hw:numa_nodes=2",
                ),
            ),
        ),
        (
            {
                "zone": " z1 ",
                "cell": "c1",
                "group": "web",
                "aggregates": "fast,ssd",
                "host": "h1",
                "avoid": "h2\nh3",
            },
            WhatIfRequest(
                vcpus=4,
                memory_mb=4096,
                disk_gb=0,
                zone="z1",
                cell="c1",
                group="web",
                aggregates="fast,ssd",
                host="h1",
                avoid=("h2", "h3"),
            ),
        ),
    ],
)
def test_form_fields_become_a_request(said: dict[str, str], meant: WhatIfRequest) -> None:
    assert read(**USUAL, **said) == meant


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"vcpus": "four"}, "Virtual CPUs: 'four' is no whole number."),
        ({"memory_mb": "-1"}, "Memory in MB: '-1' is no whole number."),
        ({"disk_gb": "9" * 16}, "is no whole number"),
        ({"count": "0"}, "Instances: from 1 to 1,000."),
        ({"count": "1001"}, "Instances: from 1 to 1,000."),
        ({"resources": "CUSTOM_GPU"}, "Other resources: 'CUSTOM_GPU' is not CLASS:AMOUNT"),
        ({"traits": "avx2"}, "Traits, !NAME is none of it: 'avx2' is no trait"),
        ({"specs": "hw:numa_nodes"}, "Extra specs, one a line: 'hw:numa_nodes' is not KEY=VALUE."),
    ],
)
def test_invalid_fields_are_named(said: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidForm) as bad:
        read(**USUAL | said)
    assert any(problem in arg for arg in bad.value.args)


def test_all_that_is_wrong_is_said_at_once_and_nothing_said_is_nothing_asked() -> None:
    with pytest.raises(InvalidForm) as bad:
        read(vcpus="x", disk_gb="y", traits="z")
    assert len(bad.value.args) == 3
    assert read() is None and read(strange="1") is None
    with pytest.raises(InvalidForm, match="at least one amount"):
        read(zone="z1")
    assert read(specs="resources:CUSTOM_GPU=1") is not None


def test_the_address_of_a_request_asks_for_the_same() -> None:
    flavor = Flavor(name="f", vcpus=4, memory_mb=4096, extra_specs={"trait:A": "required", "hw:x": "a=b"})
    request = BuildRequested(
        request=uid(1),
        instances=(uid(2), uid(3)),
        flavor=flavor,
        zone="z 1",
        hints=Hints(group=uid(9)),
        ignore_hosts=("h1", "h2"),
    )
    address = urlsplit(address_of(request))
    meant = read(**dict(parse_qsl(address.query)))
    assert address.path == "/what-if" and meant is not None
    assert (meant.vcpus, meant.memory_mb, meant.count, meant.zone) == (4, 4096, 2, "z 1")
    assert (meant.group, meant.avoid) == (uid(9), ("h1", "h2"))
    assert meant.extra_specs == ("hw:x=a=b", "trait:A=required")
    assert "host" in dict(parse_qsl(urlsplit(address_of(replace(request, wanted_host="h3"))).query))
