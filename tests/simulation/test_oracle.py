"""Form and behaviour: the recorded hashes of what simulated worlds publish and store."""

import json

from tests.simulation.oracle import BLOCK, RECORDED, differences, hashes_of_block, hashes_of_seed


def test_the_first_worlds_publish_and_store_what_is_recorded() -> None:
    """A change of form leaves all hashes equal. A change of behaviour stores new ones and says why."""
    recorded = json.loads(RECORDED.read_text())["0"]
    assert not differences(recorded, hashes_of_block(map(hashes_of_seed, range(BLOCK))))
