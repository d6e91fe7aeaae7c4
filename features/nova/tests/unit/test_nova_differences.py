"""The edits that make berth's cells, hosts and aggregates equal to Nova's."""

from dataclasses import replace
from typing import Any

from bus.aggregates import Aggregate, ChangeAggregate, DropAggregate, MakeAggregate
from bus.cells import RegisterCell, RegisteredCell
from bus.resources import OwnerEditRequested, Provider
from features.nova.core.cloud import NovaCell
from features.nova.core.differences import AGENT, MIRRORED, aggregate_edits, cell_edits, owner_edits
from features.nova.databases import host_state
from features.nova.tests.support.nova_builders import CELL, a_cloud, a_host, an_aggregate
from tests.support.ids import uid

CLOUD = a_cloud(a_host(1), a_host(2), aggregates=(an_aggregate(1, "compute-1", availability_zone="az1"),))
MARK = {MIRRORED: AGENT}


def a_provider(number: int, *aggregates: str, **fields: Any) -> Provider:
    known = {"cell": "cell1", "agent": AGENT, "host": f"compute-{number}"}
    root = uid(number, "a")
    return Provider(
        id=root, name="x", parent=None, root=root, generation=1, aggregates=aggregates, **{**known, **fields}
    )


def providers(*listed: Provider) -> dict[str, Provider]:
    return {provider.id: provider for provider in listed}


def test_new_and_changed_cells_are_registered() -> None:
    cells = (NovaCell(CELL, "cell1"), NovaCell(uid(2, "c"), "cell2", is_disabled=True))
    known = [RegisteredCell(name="cell1"), RegisteredCell(name="cell2"), RegisteredCell(name="other")]
    edits = list(cell_edits(a_cloud(cells=cells), known))
    assert edits == [RegisterCell(cell="cell2", enabled=False, note="Nova's cell cell2")]
    assert [edit.cell for edit in cell_edits(a_cloud(), [])] == ["cell1"]


def test_compute_nodes_are_assigned_to_their_cell_when_they_have_a_provider() -> None:
    assert not list(owner_edits(CLOUD, providers(a_provider(1), a_provider(2))))
    assert list(owner_edits(CLOUD, providers(a_provider(1, agent="", cell="", host="")))) == [
        OwnerEditRequested(root=uid(1, "a"), cell="cell1", agent=AGENT, host="compute-1")
    ]


def test_a_compute_node_of_a_host_that_is_mapped_to_no_cell_gets_the_cell_of_its_database() -> None:
    # Schedulers find the state of a host, disabled, by its cell.
    cloud = replace(CLOUD, unmapped={uid(3, "a"): a_host(3)})
    known = providers(a_provider(1), a_provider(2), a_provider(3, agent="", cell="", host=""))
    assert [(edit.root, edit.cell) for edit in owner_edits(cloud, known)] == [(uid(3, "a"), "cell1")]


def test_a_new_aggregate_is_created_with_its_hosts() -> None:
    [edit] = aggregate_edits(CLOUD, {}, providers(a_provider(1), a_provider(2)))
    assert edit == MakeAggregate(
        aggregate=uid(1, "d"),
        name="aggregate-1",
        metadata={"availability_zone": "az1", **MARK},
        hosts=(uid(1, "a"),),
        force=True,
    )


def test_a_changed_aggregate_is_changed_as_far_as_it_differs() -> None:
    uuid = uid(1, "d")
    known = Aggregate(id=uuid, name="old", metadata={"ssd": "true", **MARK})
    [edit] = aggregate_edits(CLOUD, {uuid: known}, providers(a_provider(1), a_provider(2, uuid)))
    assert edit == ChangeAggregate(
        aggregate=uuid,
        name="aggregate-1",
        set={"availability_zone": "az1"},
        unset=("ssd",),
        add=(uid(1, "a"),),
        remove=(uid(2, "a"),),
        force=True,
    )
    equal = Aggregate(id=uuid, name="aggregate-1", metadata={"availability_zone": "az1", **MARK})
    assert not list(aggregate_edits(CLOUD, {uuid: equal}, providers(a_provider(1, uuid), a_provider(2))))


def test_only_mirrored_aggregates_are_deleted() -> None:
    mirrored, own = uid(8, "d"), uid(9, "d")
    known = {mirrored: Aggregate(id=mirrored, name="m", metadata=MARK), own: Aggregate(id=own, name="o")}
    assert list(aggregate_edits(a_cloud(), known, {})) == [DropAggregate(aggregate=mirrored, force=True)]


def test_the_state_of_a_compute_node_is_read_from_its_row() -> None:
    row = {
        "uuid": uid(1, "a"), "host": "compute-1", "hypervisor_type": "QEMU", "hypervisor_hostname": "node-1",
        "hypervisor_version": 8002000,
        "cpu_info": '{"arch": "x86_64", "features": ["avx", "avx2"], "topology": {"cores": 4}}',
        "host_ip": "10.0.0.7", "supported_instances": '[["x86_64", "kvm", "hvm"], ["i686", "kvm", "hvm"]]',
        "metrics": '[{"name": "cpu.percent", "value": 7}, {"name": "numa.membw", "value": null}]',
        "stats": '{"num_instances": "3", "io_workload": "1", "failed_builds": "0"}',
    }  # fmt: skip
    state = host_state(row, enabled=False, why_disabled="down")
    assert (state.enabled, state.why_disabled, state.instances, state.building) == (False, "down", 3, 1)
    assert (state.architecture, state.hypervisor, state.vm_modes) == ("x86_64", "QEMU", ("hvm",))
    assert state.guest_kinds == ("x86_64/kvm/hvm", "i686/kvm/hvm")
    assert (state.hypervisor_version, state.ip, state.metrics) == (8002000, "10.0.0.7", {"cpu.percent": 7.0})
    assert state.capabilities["hypervisor_hostname"] == "node-1"
    assert state.capabilities["cpu_info:features"] == "avx,avx2"
    assert state.capabilities["cpu_info:topology:cores"] == "4"
    assert host_state({**row, "cpu_info": "?", "stats": None}, enabled=True, why_disabled="").instances == 0
