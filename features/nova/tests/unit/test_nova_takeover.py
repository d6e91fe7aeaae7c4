"""The findings of `berth openstack check`, and how severe they are before each step."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from berth.kit import ImportedConsumer, ImportedProvider, PlacementContents
from berth.kit.testing import FEATURES
from bus.reports import Inventory
from features.nova.conf import NovaSchedulerConf
from features.nova.core.cloud import MirroredAggregate
from features.nova.core.facts import (
    DatabaseFacts,
    FlavorFacts,
    InstanceFacts,
    NodeFacts,
    NovaFacts,
    ServiceFacts,
)
from features.nova.core.unjudged_properties import NO_NUMA, NO_PMEM, unjudged_by_flavor, unjudged_by_image
from features.nova.oslo.topic import TopicQueue
from features.nova.takeover.facts import BridgeFacts, ChoiceFacts, TakeoverFacts, exit_code
from features.nova.takeover.judgement import judged
from features.nova.takeover.options_judgement import ABOUT
from tests.support.ids import uid

NODE, INSTANCE, AGGREGATE = uid(1, "a"), uid(1), uid(1, "d")
PROVIDER = ImportedProvider(
    id=NODE, name="host-1", parent=None, inventories={"VCPU": Inventory(total=8)},
    traits=frozenset({"COMPUTE_NODE", "OWNER_NOVA"}), aggregates=frozenset({AGGREGATE}),
)  # fmt: skip
RENAMED = replace(PROVIDER, id="x")
CONSUMER = ImportedConsumer(
    id=INSTANCE, project="p", user="u", type="INSTANCE", allocations={NODE: {"VCPU": 1}}
)
FILTERS = ("ComputeFilter", "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter")
CHOICE = ChoiceFacts(
    filters=("up", "enabled", "server_group_anti_affinity", "server_group_affinity"),
    weighers={"ram": 1.0, "cpu": 1.0, "io_ops": -1.0},
)  # fmt: skip
FILTERS_OF_NOVA = pytest.mark.skipif("nova_filters" not in FEATURES, reason="there are no such filters")
READ = InstanceFacts(host="host-1", node="host-1", state="active", task="", flavor=1)


def a_service(binary: str = "nova-compute", **given: Any) -> ServiceFacts:
    known = {"host": "host-1", "version": 74, "is_up": True}
    return ServiceFacts(binary=binary, **{**known, **given})


def a_node(**given: Any) -> NodeFacts:
    known = {"uuid": NODE, "host": "host-1", "name": "host-1", "cell": "cell1", "mapped_to": "cell1"}
    return NodeFacts(**{**known, **given})


def a_nova(**given: Any) -> NovaFacts:
    """Return a Nova with one host and one instance, in which nothing is wrong."""
    return NovaFacts(
        **{
            "databases": [DatabaseFacts(name="the API"), DatabaseFacts(name="cell1")],
            "services": [a_service()],
            "nodes": [a_node()],
            "instances": {INSTANCE: READ},
            "flavors": {1: FlavorFacts(name="m1")},
            "aggregates": {AGGREGATE: MirroredAggregate(AGGREGATE, "rack", {}, ("host-1",))},
            **given,
        }
    )


def a_placement(
    *changed: ImportedProvider | ImportedConsumer, without: tuple[str, ...] = ()
) -> PlacementContents:
    contents = PlacementContents(providers={NODE: PROVIDER}, consumers={INSTANCE: CONSUMER})
    for thing in changed:
        if isinstance(thing, ImportedProvider):
            contents.providers[thing.id] = thing
        else:
            contents.consumers[thing.id] = thing
    for id_ in without:
        contents.providers.pop(id_, None)
        contents.consumers.pop(id_, None)
    return contents


def a_bridge(**given: Any) -> BridgeFacts:
    return BridgeFacts(**{"choice": CHOICE, "scheduler": NovaSchedulerConf(filters=FILTERS), **given})


def region(**given: Any) -> TakeoverFacts:
    known: dict[str, Any] = {
        "nova": a_nova(), "placement": a_placement(), "queue": TopicQueue(True, 0, 1), "bridge": a_bridge(),
    }  # fmt: skip
    return TakeoverFacts(**{**known, **given})


def database(**given: Any) -> TakeoverFacts:
    return region(nova=a_nova(databases=[DatabaseFacts(name="cell1", **given)]))


def nova(**given: Any) -> TakeoverFacts:
    return region(nova=a_nova(**given))


def placement(*changed: ImportedProvider | ImportedConsumer, without: tuple[str, ...] = ()) -> TakeoverFacts:
    return region(placement=a_placement(*changed, without=without))


def with_flavor(fallback: bool = False, instances: int = 1, **specs: str) -> TakeoverFacts:
    flavors = {1: FlavorFacts(name="pinned", extra_specs={k.replace("__", ":"): v for k, v in specs.items()})}
    present = {INSTANCE: READ} if instances else {}
    contents = a_placement() if instances else a_placement(without=(INSTANCE,))
    return region(
        nova=a_nova(flavors=flavors, instances=present),
        placement=contents,
        bridge=a_bridge(has_fallback=fallback),
    )


def with_image(fallback: bool = False, **properties: str) -> TakeoverFacts:
    return region(
        nova=a_nova(image_properties={INSTANCE: properties}), bridge=a_bridge(has_fallback=fallback)
    )


def lines(facts: TakeoverFacts, *, notes: bool = False) -> list[tuple[str, str]]:
    """Return level and subject of the findings."""
    found = judged(facts)
    return [(finding.level, finding.about) for finding in found if notes or finding.level != "note"]


def test_a_region_in_order_has_no_errors_and_no_warnings() -> None:
    found = judged(region())
    assert [finding.level for finding in found] == [
        "note",
        "note",
        "note",
    ]  # no scheduler is up; the queue's consumer; images that no instance has
    assert exit_code(found) == 0


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (database(problem="refused"), ("error", "database of cell1")),
        (database(problem="a template", is_template=True), ("error", "database of cell1")),
        (database(can_write=True), ("warning", "database of cell1")),
        (database(ahead=0.9), None),
        (database(ahead=-2.0), ("warning", "database of cell1")),
        (database(ahead=31.0), ("error", "database of cell1")),
        (nova(nodes=[a_node(mapped_to=None)]), ("error", "cell mappings")),
        (nova(nodes=[a_node(mapped_to="cell2")]), ("error", "cell mappings")),
        (nova(services=[a_service(version=61)]), ("warning", "compute services")),
        (placement(replace(PROVIDER, traits=frozenset({"OWNER_NOVA"}))), ("warning", "traits")),
        (placement(replace(PROVIDER, traits=frozenset({"COMPUTE_NODE"}))), ("error", "traits")),
        (region(nova=a_nova(instances={}), placement=PlacementContents()), ("error", "providers")),
        (region(nova=a_nova(instances={}), placement=PlacementContents(providers={"x": RENAMED})),
         ("error", "providers")),
        (placement(replace(CONSUMER, id=uid(7))), ("warning", "allocations")),
        (placement(without=(INSTANCE,)), ("error", "allocations")),
        (placement(replace(PROVIDER, aggregates=frozenset())), ("warning", "aggregates")),
        (region(placement=None, placement_problem="away"), ("error", "Placement at placement")),
        (region(queue=TopicQueue(problem="refused")), ("error", "queue scheduler at nova_amqp_url")),
        (region(queue=TopicQueue()), ("warning", "queue scheduler at nova_amqp_url")),
        (region(queue=TopicQueue(True, 3, 0)), ("error", "queue scheduler at nova_amqp_url")),
        (region(queue=TopicQueue(True, 0, 1, 0, "inequivalent arg 'durable'")),
         ("warning", "queue scheduler at nova_amqp_url")),
        (region(bridge=a_bridge(has_amqp=False), queue=None), ("error", "settings")),
        (region(bridge=a_bridge(has_database=False)), ("error", "settings")),
        (region(bridge=a_bridge(auth="noauth2")), ("warning", "settings")),
        (region(bridge=a_bridge(wait=1800)), ("warning", "settings")),
        (with_flavor(hw__cpu_policy="dedicated"), ("error", "flavors")),
        (with_flavor(hw__cpu_policy="dedicated", instances=0), ("warning", "flavors")),
        (with_flavor(hw__cpu_policy="dedicated", fallback=True), None),
        (with_image(hw_numa_nodes="2"), ("error", "images")),
        (with_image(hw_numa_nodes="2", fallback=True), None),
        (with_image(os_type="linux"), None),
    ],
)  # fmt: skip
def test_findings_by_severity(facts: TakeoverFacts, found: tuple[str, str] | None) -> None:
    assert lines(facts) == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("facts", "levels"),
    [
        (placement(without=(NODE, INSTANCE)),
         {"import": "warning", "placement": "error", "scheduler": "error"}),
        # The import of the step `placement` copies what has changed since the last one.
        (placement(without=(INSTANCE,)), {"import": "warning", "placement": "note", "scheduler": "error"}),
        (placement(replace(CONSUMER, id=uid(7))),
         {"import": "warning", "placement": "note", "scheduler": "warning"}),
        (nova(nodes=[a_node(), a_node(uuid=uid(2, "a"), name="host-2")]),
         {"import": "warning", "placement": "note", "scheduler": "error"}),
        (placement(replace(PROVIDER, traits=frozenset({"COMPUTE_NODE"}))),
         {"import": "error", "placement": "note", "scheduler": "error"}),
        (placement(replace(PROVIDER, aggregates=frozenset())),
         {"import": "warning", "placement": "note", "scheduler": "note"}),
        (nova(nodes=[a_node(mapped_to=None)]), {"import": "", "placement": "", "scheduler": "error"}),
        (with_flavor(hw__numa_nodes="2"), {"import": "", "placement": "", "scheduler": "error"}),
        (region(bridge=a_bridge(auth="noauth2")),
         {"import": "", "placement": "warning", "scheduler": "warning"}),
    ],
)  # fmt: skip
def test_the_severity_depends_on_the_step(facts: TakeoverFacts, levels: dict[str, str]) -> None:
    for step, level in levels.items():
        found = judged(structs.replace(facts, step=step))
        subjects = [finding.level for finding in found if not finding.about.startswith(("nova-sch", "queue"))]
        assert (subjects[0] if subjects else "") == level, step


@pytest.mark.parametrize("problem", ["refused", "a template"])
def test_the_database_of_cell0_needs_no_url(problem: str) -> None:
    cell0 = DatabaseFacts(name="cell0", problem=problem, is_template=True, is_needed=False)
    facts = nova(databases=[DatabaseFacts(name="the API"), cell0], services=[a_service()])
    found = [finding for finding in judged(facts) if finding.about == "database of cell0"]
    assert [finding.level for finding in found] == ["note"]
    assert facts.nova.is_complete


@pytest.mark.parametrize(
    ("nova_has", "berth_has", "level", "text"),
    [
        ({}, {}, None, ""),
        pytest.param({"filters": ("ComputeFilter", "AllHostsFilter")}, {}, None, "", marks=FILTERS_OF_NOVA),
        ({"filters": ("NUMATopologyFilter",)}, {}, "warning", "NUMA topology, pinned CPUs"),
        ({"filters": ("PciPassthroughFilter",)}, {}, "warning", "SR-IOV ports fail"),
        pytest.param({"filters": ("NumInstancesFilter",)}, {}, "warning", "NumInstancesFilter",
                     marks=FILTERS_OF_NOVA),
        pytest.param({"filters": ("NumInstancesFilter",)}, {"filters": ("num_instances",)}, None, "",
                     marks=FILTERS_OF_NOVA),
        pytest.param({"filters": ("AggregateMultiTenancyIsolation",)}, {}, "error", "separation of tenants",
                     marks=FILTERS_OF_NOVA),
        ({"filters": ("RackFilter",)}, {}, "error", "RackFilter"),
        ({"filters": ("IoOpsFilter",)}, {"filters": ("io_ops",)}, "warning", "for_nova"),
        ({"filters": ("IoOpsFilter",)}, {"filters": ("io_ops",), "limits_io_ops": True}, None, ""),
        ({"multipliers": {"ram_weight_multiplier": ("ram", -1.0)}}, {}, "warning", "instead of packed"),
        ({"multipliers": {"ram_weight_multiplier": ("ram", -1.0)}}, {"weighers": {"ram": -1.0}}, None, ""),
        ({"weighers": ("RAMWeigher",)}, {}, "warning", "cpu, io_ops"),
        ({"weighers": ("RAMWeigher", "RackWeigher")}, {"weighers": {"ram": 1.0}}, "warning", "RackWeigher"),
        ({"subset": 5}, {}, "note", "host_subset_size is 5"),
        ({"tenant_aggregates": True}, {}, "error", "tenant_aggregates = optional"),
        ({"tenant_aggregates": True}, {"tenant_aggregates": "optional"}, None, ""),
        ({"tenant_aggregates": True, "tenant_aggregates_required": True}, {"tenant_aggregates": "optional"},
         "error", "tenant_aggregates = required"),
        ({"isolate_aggregates": True}, {}, "error", "isolate_aggregates = true"),
        ({"isolate_aggregates": True}, {"isolate_aggregates": True}, None, ""),
        ({"image_types": True}, {}, "warning", "image_traits = type"),
        ({"image_metadata": True}, {"image_traits": ("type",)}, "warning", "image_traits = type, metadata"),
        ({"discovery": 300}, {}, "warning", "discover_hosts"),
        ({"discovery": 0}, {}, "warning", "discover_hosts"),
    ],
)  # fmt: skip
def test_options_of_nova_scheduler_that_would_end_with_it_are_findings(
    nova_has: dict[str, Any], berth_has: dict[str, Any], level: str | None, text: str
) -> None:
    nova_has = {"filters": FILTERS, **nova_has}
    bridge = a_bridge(scheduler=NovaSchedulerConf(**nova_has), choice=structs.replace(CHOICE, **berth_has))
    found = [finding for finding in judged(region(bridge=bridge)) if finding.about == ABOUT]
    assert [finding.level for finding in found] == ([level] if level else [])
    assert all(text in " ".join((finding.says, finding.means, finding.do)) for finding in found)
    for step in ("import", "placement"):
        others = judged(structs.replace(region(bridge=bridge), step=step))
        assert not [finding for finding in others if finding.about == ABOUT]


def test_without_the_file_of_nova_its_options_are_unknown() -> None:
    found = judged(region(bridge=a_bridge(scheduler=None)))
    assert [(finding.level, finding.do[:13]) for finding in found if finding.about == ABOUT] == [
        ("warning", "Set nova_conf")
    ]


@pytest.mark.parametrize(
    ("is_up", "is_done", "level"),
    [(True, False, "note"), (True, True, "warning"), (False, False, "note"), (False, True, "")],
)
def test_a_nova_scheduler_must_be_stopped_after_the_step_but_not_before(
    is_up: bool, is_done: bool, level: str
) -> None:
    services = [a_service(), a_service("nova-scheduler", host="s", is_up=is_up)]
    found = judged(region(nova=a_nova(services=services), is_done=is_done))
    assert [finding.level for finding in found if finding.about == "nova-scheduler"] == (
        [level] if level else []
    )


@pytest.mark.parametrize(
    ("change", "consumers"),
    [
        (lambda known: known.building.add(uid(7)), 0),  # a boot that has claimed a host
        (lambda known: known.migrations.add(uid(7)), 0),
        (lambda known: known.instances.update({uid(7): replace(READ, host="")}), 0),
        (lambda known: known.databases.append(DatabaseFacts(name="cell2", problem="away")), 0),
        (lambda known: None, 1),
    ],
)
def test_a_consumer_is_an_orphan_only_if_no_readable_table_of_nova_has_it(
    change: Callable[[NovaFacts], None], consumers: int
) -> None:
    known = a_nova()
    change(known)
    found = judged(region(nova=known, placement=a_placement(replace(CONSUMER, id=uid(7)))))
    assert sum(finding.about == "allocations" for finding in found) == consumers


def test_a_consumer_on_providers_of_another_system_is_no_orphan() -> None:
    foreign = replace(PROVIDER, id="foreign", name="another", aggregates=frozenset())
    reservation = replace(CONSUMER, id=uid(7), allocations={"foreign": {"VCPU": 1}})
    assert lines(placement(foreign, reservation)) == []


@pytest.mark.parametrize(
    "instance",
    [replace(READ, host=""), replace(READ, task="spawning"), replace(READ, state="shelved_offloaded")],
)
def test_an_instance_needs_no_allocations_without_a_host_or_while_nova_changes_it(
    instance: InstanceFacts,
) -> None:
    facts = region(nova=a_nova(instances={INSTANCE: instance}), placement=a_placement(without=(INSTANCE,)))
    assert lines(facts) == []


def test_an_instance_with_allocations_only_on_another_host_is_named() -> None:
    other = replace(PROVIDER, id=uid(2, "a"), name="host-2", aggregates=frozenset())
    contents = a_placement(other, replace(CONSUMER, allocations={other.id: {"VCPU": 1}}))
    [found] = [finding for finding in judged(region(placement=contents)) if finding.about == "allocations"]
    assert found.level == "error" and f"{INSTANCE} (on host-1, with allocations elsewhere)" in found.says


def test_an_instance_with_allocations_on_two_hosts_is_named() -> None:
    other = replace(PROVIDER, id=uid(2, "a"), name="host-2", aggregates=frozenset())
    held = {NODE: {"VCPU": 1}, other.id: {"VCPU": 1}}
    nodes = [a_node(), a_node(uuid=other.id, name="host-2", host="host-2")]
    contents = a_placement(other, replace(CONSUMER, allocations=held))
    [found] = [
        finding
        for finding in judged(region(nova=a_nova(nodes=nodes), placement=contents))
        if finding.about == "allocations"
    ]
    assert found.level == "warning" and "on host-1, also with allocations on host-2" in found.says


def test_allocations_of_a_child_provider_count_for_the_host() -> None:
    child = replace(PROVIDER, id="child", name="host-1_pgpu", parent=NODE, aggregates=frozenset())
    assert lines(placement(child, replace(CONSUMER, allocations={"child": {"VGPU": 1}}))) == []


@pytest.mark.parametrize(
    ("specs", "is_judged"),
    [
        ({}, True),
        ({"hw:cpu_policy": "shared", "hw:cpu_sockets": "2"}, True),
        ({"hw:cpu_policy": "mixed"}, False),
        ({"hw:numa_nodes": "1"}, False),
        ({"hw:mem_page_size": "large"}, False),
        ({"resources:PCPU": "4"}, False),
        ({"resources1:PCPU": "4"}, False),
        ({"resources:VGPU": "1"}, True),
        ({"pci_passthrough:alias": "gpu:1"}, False),
    ],
)
def test_flavors_with_a_numa_topology_or_pci_devices_cannot_be_judged(
    specs: dict[str, str], is_judged: bool
) -> None:
    assert (unjudged_by_flavor(specs, has_pci=False) == "") is is_judged


@pytest.mark.parametrize(
    ("properties", "is_judged"),
    [
        ({}, True),
        ({"hw_cpu_policy": "shared", "hw_disk_bus": "virtio"}, True),
        ({"hw_cpu_policy": "dedicated"}, False),
        ({"hw_numa_nodes": "2"}, False),
        ({"hw_numa_cpus.0": "0,1"}, False),
        ({"hw_mem_page_size": "large"}, False),
    ],
)
def test_images_with_a_numa_topology_cannot_be_judged(properties: dict[str, str], is_judged: bool) -> None:
    assert unjudged_by_image(properties) == ("" if is_judged else NO_NUMA)


def test_persistent_memory_has_a_reason_of_its_own() -> None:
    assert unjudged_by_flavor({"hw:pmem": "4GB"}, has_pci=True) == NO_PMEM
    assert "pinned" not in NO_PMEM and "hw:pmem" in NO_PMEM


def test_filters_of_numa_and_pci_are_notes_if_a_nova_scheduler_decides_such_requests() -> None:
    conf = NovaSchedulerConf(filters=(*FILTERS, "NUMATopologyFilter", "PciPassthroughFilter"))
    found = judged(region(bridge=a_bridge(scheduler=conf, has_fallback=True)))
    levels = [finding.level for finding in found if finding.about == ABOUT]
    assert levels == ["note", "note"]


def test_every_error_and_warning_says_what_it_means_and_what_repairs_it() -> None:
    facts = region(
        nova=a_nova(
            databases=[DatabaseFacts(name="cell1", can_write=True, ahead=40.0)],
            nodes=[a_node(mapped_to=None), a_node(uuid=uid(2, "a"), name="host-2", host="host-2")],
            services=[a_service(version=60), a_service("nova-scheduler", host="s")],
        ),
        placement=a_placement(replace(CONSUMER, id=uid(7)), without=(INSTANCE,)),
        queue=TopicQueue(True, 0, 0, 0, "inequivalent arg"),
        bridge=a_bridge(auth="tokens", wait=9999),
        is_done=True,
    )
    found = [finding for finding in judged(facts) if finding.level != "note"]
    assert len(found) >= 11 and exit_code(found) == 2
    assert all(finding.means and finding.do for finding in found)
