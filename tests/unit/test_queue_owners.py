"""The cell of a queue by its name: dead letters have that cell's key, and return only there."""

import pytest

from bus.worker import cell_of


@pytest.mark.parametrize(
    ("queue", "cell"),
    [
        ("conductor.c1:build.placed.c1", "c1"),
        ("agent.c1.c1-agent1:agent.build.c1.c1-agent1", "c1"),
        ("ask:cell.builds.c1", "c1"),
        ("ask:cell.instances.c1", "c1"),
        ("placement:inventory.reported.c1", ""),
        ("ask:placement.claim.c1", ""),
        ("ask:placement.cells", ""),
        ("scheduler:build.requested", ""),
    ],
)
def test_whose_a_queue_is(queue: str, cell: str) -> None:
    assert cell_of(queue) == cell
