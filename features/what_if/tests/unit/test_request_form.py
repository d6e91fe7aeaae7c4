"""The form of what-if questions."""

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from msgspec.structs import replace

from bus.messages import BuildRequested
from bus.parts import RequestParts
from bus.requests import Flavor
from control_room.core.forms import FormField, InvalidForm, RequestField
from features.waiting.boot_options import FORM_FIELDS
from features.waiting.messages import WaitPart
from features.what_if.core.request_form import RequestForm
from tests.support.ids import uid

USUAL = {"vcpus": "4", "memory_mb": "4096"}


RACK = RequestField(FormField(name="rack", label="Rack"), lambda request: f"of {request.project}")
FORM = RequestForm((*FORM_FIELDS, RACK))


def read(**reply: str) -> dict[str, Any] | None:
    return FORM.options(FORM.texts(reply))


@pytest.mark.parametrize(
    ("reply", "meant"),
    [
        ({}, {}),
        ({"count": "10", "at_least": "3"}, {"count": 10, "at_least": 3}),
        ({"resources": "CUSTOM_GPU:1, VGPU:2"},
         {"extra_spec": ("resources:CUSTOM_GPU=1", "resources:VGPU=2")}),
        ({"traits": "CUSTOM_A !CUSTOM_B", "specs": "hw:numa_nodes=2\n"},
         {"extra_spec": ("trait:CUSTOM_A=required", "trait:CUSTOM_B=forbidden", "hw:numa_nodes=2")}),
        ({"zone": " z1 ", "cell": "c1"}, {"zone": "z1", "cell": "c1"}),
        ({"aggregates": "fast,ssd", "host": "h1", "avoid": "h2\nh3"},
         {"aggregate": ("fast,ssd",), "host": "h1", "ignore_host": ("h2", "h3")}),
        ({"rack": "r1", "priority": "7"}, {"rack": "r1", "priority": 7}),
    ],
)  # fmt: skip
def test_form_fields_become_a_request(reply: dict[str, str], meant: dict[str, Any]) -> None:
    numbers = {"vcpus": 4, "memory_mb": 4096, "disk_gb": 0, "count": 1, "at_least": 0, "priority": 0}
    lists = {"extra_spec": (), "aggregate": (), "ignore_host": ()}
    texts = dict.fromkeys(("zone", "cell", "host", "project", "rack"), "")
    assert read(**USUAL, **reply) == {**numbers, **lists, **texts, **meant}


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"vcpus": "four"}, "Virtual CPUs: 'four' is no whole number."),
        ({"memory_mb": "-1"}, "Memory in MB: '-1' is no whole number."),
        ({"disk_gb": "9" * 16}, "is no whole number"),
        ({"count": "0"}, "Instances: from 1 to 1,000."),
        ({"count": "1001"}, "Instances: from 1 to 1,000."),
        ({"priority": "10"}, "Priority, 0 to 9: 10 is too high."),
        ({"resources": "CUSTOM_GPU"}, "Other resources: 'CUSTOM_GPU' is not CLASS:AMOUNT"),
        ({"traits": "avx2"}, "Traits; !NAME: without this trait: 'avx2' is no trait"),
        ({"specs": "hw:numa_nodes"}, "Extra specs, one per line: 'hw:numa_nodes' is not KEY=VALUE."),
    ],
)
def test_invalid_fields_are_named(reply: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidForm) as bad:
        read(**USUAL | reply)
    assert any(problem in arg for arg in bad.value.args)


def test_all_errors_of_a_form_are_reported_together() -> None:
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
        project="shop",
        parts=RequestParts().having(WaitPart(priority=7)),
        ignore_hosts=("h1", "h2"),
    )
    address = urlsplit(FORM.address_of(request))
    meant = read(**dict(parse_qsl(address.query)))
    assert address.path == "/what-if" and meant is not None
    assert (meant["vcpus"], meant["memory_mb"], meant["count"], meant["zone"]) == (4, 4096, 2, "z 1")
    assert (meant["ignore_host"], meant["priority"], meant["rack"]) == (("h1", "h2"), 7, "of shop")
    assert meant["extra_spec"] == ("hw:x=a=b", "trait:A=required")
    assert "host" in dict(parse_qsl(urlsplit(FORM.address_of(replace(request, wanted_host="h3"))).query))
