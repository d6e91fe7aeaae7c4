"""Builders for tests of the bridge to Nova: clouds, and requests as Nova's RPC sends them."""

from typing import Any

from bus.reports import HostState
from features.nova.core.cloud import MirroredAggregate, NovaCell, NovaCloud, NovaHost
from features.nova.core.objects import versioned
from tests.support.ids import uid

CELL = uid(1, "c")


def a_host(number: int, *, cell: str = CELL, host: str = "", node: str = "", version: int = 0) -> NovaHost:
    root, name = uid(number, "a"), host or f"compute-{number}"
    return NovaHost(root, name, node or name, cell, version, HostState(root=root, host=name))


def a_cloud(
    *hosts: NovaHost, aggregates: tuple[MirroredAggregate, ...] = (), cells: tuple[NovaCell, ...] = ()
) -> NovaCloud:
    known = cells or (NovaCell(CELL, "cell1"),)
    return NovaCloud(
        {cell.uuid: cell for cell in known},
        {host.root: host for host in hosts or (a_host(1), a_host(2))},
        {aggregate.uuid: aggregate for aggregate in aggregates},
    )


def an_aggregate(number: int, *hosts: str, **metadata: str) -> MirroredAggregate:
    return MirroredAggregate(uid(number, "d"), f"aggregate-{number}", metadata, hosts)


def a_flavor(**fields: Any) -> dict[str, Any]:
    known = {"name": "m1", "vcpus": 2, "memory_mb": 512, "root_gb": 10, "ephemeral_gb": 1, "swap": 1025}
    return versioned("Flavor", "1.2", {**known, "extra_specs": {}, **fields})


def a_spec(flavor: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a RequestSpec as JSON; `image` are the image's properties."""
    properties = fields.pop("image", None)
    image = None
    if properties is not None:
        known = {"id": uid(5, "e"), "name": "debian", "disk_format": "qcow2"}
        image = versioned(
            "ImageMeta", "1.8", {**known, "properties": versioned("ImageMetaProps", "1.40", properties)}
        )
    owner: dict[str, Any] = {
        "project_id": "p1",
        "user_id": "u1",
        "num_instances": 1,
        "is_bfv": False,
        "image": image,
    }
    return versioned("RequestSpec", "1.15", {**owner, "flavor": flavor or a_flavor(), **fields})


def a_destination(**fields: Any) -> dict[str, Any]:
    if "cell" in fields:
        fields["cell"] = versioned("CellMapping", "1.1", {"uuid": fields["cell"], "name": "cell1"})
    return versioned("Destination", "1.4", fields)
