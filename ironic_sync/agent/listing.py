"""Lists the nodes of an agent's pool from Ironic."""

import logging
from collections.abc import Sequence
from typing import Any

from ironic_sync.access import IronicRefused
from ironic_sync.agent.lease import ListNodes, NotOurs
from ironic_sync.api import IronicApi
from ironic_sync.core.node import Malformed, from_rest
from ironic_sync.core.selection import NodeSelection

log = logging.getLogger(__name__)


def nodes_of(api: IronicApi, selection: NodeSelection, cell: str, pool: str) -> ListNodes:
    """Return a function that lists the nodes of this cell and of this pool, as selections name it."""

    filters: dict[str, Any] = {**selection.filters()}

    async def listed() -> Sequence[str]:
        found = []
        try:
            async for page in api.nodes(fields=selection.fields(), **filters):
                for said in page:
                    try:
                        node = from_rest(said)
                    except Malformed as problem:  # the first order for the node will report the problem
                        log.warning("a node that cannot be read is left out: %s", problem)
                        continue
                    place = selection.place(node)
                    if place is not None and (place.cell, place.agent) == (cell, pool):
                        found.append(node.uuid)
        except IronicRefused as problem:
            raise NotOurs(f"Ironic does not list its nodes: {problem}") from None
        return found

    return listed
