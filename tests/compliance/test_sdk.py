"""Every call of openstacksdk's placement proxy works, and finds what was written."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import openstack
import pytest
from openstack import exceptions
from openstack.placement.v1._proxy import Proxy

from tests.compliance.api import PlacementApi

OFFERED = {
    name for name, value in vars(Proxy).items() if callable(value) and not name.startswith(("_", "wait_for_"))
}


class Recorder:
    """Hands calls on, and remembers which."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._proxy, name)


@pytest.fixture
def placement(api: PlacementApi) -> Iterator[Recorder]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with openstack.connect(
            auth_type="admin_token",
            endpoint=api.wire.base_url,
            token="admin",
            placement_endpoint_override=api.wire.base_url,
        ) as connection:
            yield Recorder(connection.placement)


def test_tour(placement: Recorder) -> None:
    classes(placement)
    traits(placement)
    host = providers(placement)
    aggregates(placement, host)
    inventories(placement, host)
    traits_of(placement, host)
    allocations(placement, host)
    placement.delete_resource_provider(host)
    assert list(placement.resource_providers()) == []
    assert placement.called >= OFFERED, f"not tried: {OFFERED - placement.called}"


def classes(placement: Recorder) -> None:
    placement.create_resource_class(name="CUSTOM_CARD")
    assert placement.get_resource_class("CUSTOM_CARD").name == "CUSTOM_CARD"
    placement.update_resource_class("CUSTOM_CARD", name="CUSTOM_CHIP")
    assert {"CUSTOM_CHIP", "VCPU"} <= {known.name for known in placement.resource_classes()}
    placement.delete_resource_class("CUSTOM_CHIP", ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        placement.get_resource_class("CUSTOM_CHIP")


def traits(placement: Recorder) -> None:
    placement.create_trait("CUSTOM_BLUE")
    assert placement.get_trait("CUSTOM_BLUE").id == "CUSTOM_BLUE"
    assert [trait.name for trait in placement.traits(name="startswith:CUSTOM_")] == ["CUSTOM_BLUE"]
    placement.delete_trait("CUSTOM_BLUE", ignore_missing=False)
    assert [trait.name for trait in placement.traits(name="startswith:CUSTOM_")] == []


def providers(placement: Recorder) -> Any:
    made = placement.create_resource_provider(name="made", id=str(uuid.uuid4()))
    placement.update_resource_provider(made, name="host")
    host = placement.get_resource_provider(made.id)
    assert (host.name, host.root_provider_id, host.parent_provider_id) == ("host", made.id, None)
    assert placement.find_resource_provider("host").id == host.id
    assert [found.id for found in placement.resource_providers(name="host")] == [host.id]
    return host


def aggregates(placement: Recorder, host: Any) -> None:
    rack = str(uuid.uuid4())
    assert placement.set_resource_provider_aggregates(host, rack).aggregates == [rack]
    assert placement.fetch_resource_provider_aggregates(host).aggregates == [rack]
    assert placement.get_resource_provider_aggregates(host).aggregates == [rack]
    assert [found.id for found in placement.resource_providers(member_of=rack)] == [host.id]


def inventories(placement: Recorder, host: Any) -> None:
    host = placement.get_resource_provider(host.id)
    placement.create_resource_provider_inventory(host, "VCPU", total=8)
    found = placement.get_resource_provider_inventory("VCPU", host)
    assert (found.total, found.max_unit) == (8, 2**31 - 1)
    placement.update_resource_provider_inventory(
        "VCPU", host, total=16, resource_provider_generation=found.resource_provider_generation
    )
    (found,) = placement.resource_provider_inventories(host)
    assert (found.resource_class, found.total) == ("VCPU", 16)
    placement.delete_resource_provider_inventory("VCPU", host, ignore_missing=False)
    assert list(placement.resource_provider_inventories(host)) == []
    generation = placement.get_resource_provider(host.id).generation
    both = {"VCPU": {"total": 8}, "DISK_GB": {"total": 100}}
    set_ = placement.set_resource_provider_inventories(host, both, generation)
    assert set_.generation == generation + 1
    assert {found.resource_class for found in placement.resource_provider_inventories(host)} == set(both)
    placement.delete_resource_provider_inventories(host)
    assert list(placement.resource_provider_inventories(host)) == []


def traits_of(placement: Recorder, host: Any) -> None:
    had = placement.get_resource_provider_trait(host)
    placement.set_resource_provider_trait(
        had, traits=["HW_CPU_X86_AVX2"], resource_provider_generation=had.resource_provider_generation
    )
    assert placement.get_resource_provider_trait(host).traits == ["HW_CPU_X86_AVX2"]
    assert [found.id for found in placement.resource_providers(required="HW_CPU_X86_AVX2")] == [host.id]
    placement.delete_resource_provider_trait(host)
    assert placement.get_resource_provider_trait(host).traits == []


def allocations(placement: Recorder, host: Any) -> None:
    placement.create_resource_provider_inventory(host, "VCPU", total=8)
    (candidate,) = placement.allocation_candidates(resources="VCPU:2")
    assert candidate.allocations == {host.id: {"resources": {"VCPU": 2}}}
    assert candidate.provider_summaries[host.id]["resources"]["VCPU"] == {"capacity": 8, "used": 0}
    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    owner = {"project_id": "p", "user_id": "u", "consumer_type": "INSTANCE", "consumer_generation": None}
    placement.update_allocation(one, allocations=candidate.allocations, **owner)
    placement.create_allocations({two: {"allocations": {host.id: {"resources": {"VCPU": 1}}}, **owner}})
    held = placement.get_allocation(one)
    assert held.allocations[host.id]["resources"] == {"VCPU": 2}
    assert (held.project_id, held.consumer_type, held.consumer_generation) == ("p", "INSTANCE", 1)
    assert placement.fetch_resource_provider_usages(host).usages == {"VCPU": 3}
    held_here = {held.consumer_id: held.resources for held in placement.resource_provider_allocations(host)}
    assert held_here == {one: {"VCPU": 2}, two: {"VCPU": 1}}
    (used,) = placement.usages("p", user_id="u")
    assert (used.consumer_type, used.consumer_count, used.resources) == ("INSTANCE", 2, {"VCPU": 3})
    for consumer in (one, two):
        placement.delete_allocation(consumer, ignore_missing=False)
    assert placement.fetch_resource_provider_usages(host).usages == {"VCPU": 0}
