"""Remedies: searches for changes with which a request without a host would fit."""

from time import process_time

import pytest

from bus.requests import Flavor
from scheduler_worker.placing import suggestions
from tests.support.index_source import source_of
from tests.support.provider_trees import a_host_of_cells
from tests.support.scheduler_builders import FakePlacement, a_request
from tests.support.schedulers import scheduler_of


async def test_remedies_are_searched_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "REQUEST_SECONDS", 0.1)
    specs = {f"resources{index}:VCPU": "2" for index in range(60)} | {"group_policy": "isolate"}
    specs |= {f"same_subtree{index}": f"{index},{index + 1}" for index in range(59)}
    scheduler = scheduler_of(FakePlacement(), source=source_of([a_host_of_cells(1, cells=1000, vcpus=100)]))
    began = process_time()
    await scheduler.place_many([a_request(flavor=Flavor(name="f", extra_specs=specs))])
    assert process_time() - began < 4.0
