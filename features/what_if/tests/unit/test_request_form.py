"""The form of what-if questions."""

from typing import Any

import pytest

from control_room.kit import FormField, InvalidForm, RequestField
from features.what_if.core.request_form import RequestForm

USUAL = {"vcpus": "4", "memory_mb": "4096"}


RACK = RequestField(FormField(name="rack", label="Rack"), lambda request: f"of {request.project}")
FLOOR = RequestField(FormField(name="floor", label="Floor, 0 to 9", number=True), lambda request: "0", most=9)
FORM = RequestForm((RACK, FLOOR))


def read(**reply: str) -> dict[str, Any] | None:
    return FORM.options(FORM.texts(reply))


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"vcpus": "four"}, "Virtual CPUs: 'four' is no whole number."),
        ({"memory_mb": "-1"}, "Memory in MB: '-1' is no whole number."),
        ({"disk_gb": "9" * 16}, "is no whole number"),
        ({"count": "0"}, "Instances: from 1 to 1,000."),
        ({"count": "1001"}, "Instances: from 1 to 1,000."),
        ({"floor": "10"}, "Floor, 0 to 9: 10 is too high."),
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
