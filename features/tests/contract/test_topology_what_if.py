"""Options of topology in the form for what-if questions."""

from bus.decisions import Decision
from features.topology.boot_options import TopologyOptions
from features.what_if.messages import WHAT_IF, WhatIfAnswered
from tests.support.visited_room import a_visited_room


async def test_an_invalid_option_of_topology_is_refused_by_the_page_of_what_if_questions() -> None:
    assert "spread" in TopologyOptions.__dataclass_fields__
    answer = WhatIfAnswered(fits=False, decision=Decision())
    async with a_visited_room(sent={WHAT_IF.name: answer}) as room:
        refused = await room.page("/what-if?vcpus=4&spread=rack:0")
    assert "--spread rack:0: takes LEVEL or LEVEL:K, such as rack:2" in refused
