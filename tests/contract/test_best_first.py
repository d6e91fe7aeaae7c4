"""`placement.candidates` with an order: the best of all that fit come first, page by page. On both buses."""

from msgspec.structs import replace

from bus import topics
from bus.delivery.runner import Bus
from bus.queries import FindCandidates, OrderBy
from bus.requests import ResourceGroup
from placement_worker import placement_worker
from tests.support.buses import Connect, serving
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, report

USED = {1: 3, 2: 0, 3: 7, 4: 5}  # host → VCPU of it that are used


async def test_the_best_come_first_page_by_page_and_the_scale_is_told(connect: Connect) -> None:
    async with a_placement("sqlite+aiosqlite://") as placement, Bus(connect()) as client:
        for number in USED:
            await report(placement, a_report(number))
        for number, used in USED.items():
            if used:
                await claim(placement, an_order(a_claim(number, on_hosts(number, VCPU=used))))
        async with serving(connect, placement_worker(placement, client.publish, ("c1",))):
            ask = client.asker(topics.FIND_CANDIDATES)
            for multiplier, best in ((1.0, [2, 1, 4, 3]), (-1.0, [3, 4, 1, 2])):
                question = FindCandidates(
                    groups=(ResourceGroup(resources={"VCPU": 1}),),
                    limit=3,
                    order=(OrderBy(resource_class="VCPU", multiplier=multiplier),),
                )
                first = await ask(question)
                assert [candidate.root for candidate in first.candidates] == [
                    uid(one, "a") for one in best[:3]
                ]
                scale = first.order[0]
                assert scale.highest is not None and scale.lowest is not None
                assert scale.highest - scale.lowest == 7.0
                assert first.more is not None
                rest = await ask(replace(question, after=first.more, order=first.order))
                assert [candidate.root for candidate in rest.candidates] == [uid(best[3], "a")]
                assert rest.more is None
