"""Rows for tests in the tables of Nova that berth reads (deploy/nova_tables.py), with easy UUIDs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from deploy import nova_tables as tables
from deploy.nova_tables import NovaTables, add_service, nova_tables
from tests.support.ids import uid

__all__ = [
    "CELL",
    "NewDatabase",
    "NovaTables",
    "add_cell",
    "add_flavor",
    "add_host",
    "add_instance",
    "add_service",
    "nova_tables",
]

CELL = uid(1, "c")
NewDatabase = Callable[[], AbstractAsyncContextManager[str]]  # makes an empty database, and returns its URL


async def add_cell(api: NovaTables, cell: NovaTables, *, uuid: str = CELL, name: str = "cell1") -> int:
    return await tables.add_cell(api, cell, uuid, name)


async def add_host(
    api: NovaTables, cell: NovaTables, number: int, *, cell_id: int | None = 1, version: int = 74
) -> str:
    """Add a compute service and its node, mapped if the cell's id is given; return the node's uuid."""
    root = uid(number, "a")
    await tables.add_host(api, cell, f"host-{number}", root, cell_id=cell_id, version=version)
    return root


async def add_instance(cell: NovaTables, number: int, host: int, **given: Any) -> str:
    known = {"host": f"host-{host}", "node": f"host-{host}", "vm_state": "active", "instance_type_id": 1}
    await cell.add("instances", uuid=uid(number), **{**known, **given})
    return uid(number)


async def add_flavor(api: NovaTables, name: str, extra_specs: Mapping[str, str] = {}) -> int:
    flavor = await api.add("flavors", name=name)
    for key, value in extra_specs.items():
        await api.add("flavor_extra_specs", flavor_id=flavor, key=key, value=value)
    return flavor
