"""`berth move make-room` for a gang, whose members need one rack."""

import json

from features.planning.tests.support.embedded_room import HOSTS
from features.planning.tests.support.embedded_room import berth as berth
from features.topology.boot_options import TopologyOptions
from tests.support.living_berth import LivingBerth

RACKS = dict(zip(HOSTS, ("r1", "r3", "r1", "r2", "r2"), strict=True))


async def test_a_gang_gets_room_in_one_rack(berth: LivingBerth) -> None:
    for host, rack in RACKS.items():
        await berth("host", "label", host, f"rack={rack}")
    gang = TopologyOptions(role=("a:2,memory_mb=70000", "b:1,memory_mb=10000"), pack="rack")
    roles = [word for role in gang.role for word in ("--role", role)]
    packed = ("--disk-gb", "1", *roles, "--pack", gang.pack)
    assert "no host" in await berth("boot", *packed, "--wait", ends=1)
    sent = await berth("move", "make-room", *packed)
    assert "done: 4 moves; 3 builds fit: " in sent
    await berth("boot", *packed, "--wait")
    rows = [json.loads(line) for line in (await berth("instance", "list", "--json")).splitlines()]
    assert len({RACKS[row["host"]] for row in rows if row["flavor"].startswith("custom-")}) == 1
    await berth.clean()
