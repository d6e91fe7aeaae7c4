"""A cell that adopts instances."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from berth.kit.testing import packages
from bus.claims import Choice, Claimed
from bus.errors import Unavailable
from bus.messages import Selection
from bus.queries import BuildStands, FindBuilds
from bus.requests import BuildSpec, Flavor
from bus.resources import Consumer, FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.vocabulary import Message
from cell_conductor.testing import Builds
from features.adoption.adopting import Adoptions
from features.adoption.messages import BuildAdopted, BuildAdoptRequested
from placement_worker.testing import Placement
from tests.support.conductor_builders import FEATURES
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, report

HERE = uid(1, "a")
WHO = uid(7)
ASKED = BuildAdoptRequested(
    build=WHO,
    cell="c1",
    chosen=Selection(root=HERE, host="host-1", agent="agent-1", choice=Choice(on_hosts(1, VCPU=2))),
    generation=1,
    spec=BuildSpec(flavor=Flavor(name="old", vcpus=2), project="p1", user="u1", name="web"),
    reply_to="me",
)


@pytest.fixture
def url() -> str:
    """Return one type of database: test_heal_by_adoption.py runs the statements on both."""
    return "sqlite+aiosqlite://"


class AdoptingCell:
    def __init__(self, database: Database, placement: Placement) -> None:
        self.placement, self.answers_lost = placement, 0
        self.builds = Builds(database, self.claim_many, self.release_many, clock=placement.clock, **FEATURES)
        self.adoptions = Adoptions(self.builds)

    async def claim_many(self, orders: Any) -> Any:
        answers = await self.placement.claims.claim_many(orders, cell="c1")
        if self.answers_lost:
            self.answers_lost -= 1
            raise Unavailable("the answer was lost")
        return answers

    async def release_many(self, orders: Any) -> Any:
        return await self.placement.claims.release_many(orders, cell="c1")

    async def hears(self, *asked: BuildAdoptRequested) -> list[list[Message]]:
        outcomes = await self.adoptions.adopt_many(asked)
        assert all(isinstance(outcome, list) for outcome in outcomes), outcomes
        return [list(outcome) for outcome in outcomes if isinstance(outcome, list)]

    async def refuses(self, asked: BuildAdoptRequested) -> str:
        ((reply,),) = await self.hears(asked)
        assert isinstance(reply, BuildAdopted) and reply.outcome == "refused"
        return reply.why

    async def stands(self, build: str = WHO) -> BuildStands | None:
        return next(iter((await self.builds.find(FindBuilds(cell="c1", builds=(build,)))).builds), None)

    async def held(self, build: str = WHO) -> Consumer | None:
        found = await self.placement.lookups.allocations(FindAllocations(consumers=(build,)))
        return next(iter(found.consumers), None)


@pytest.fixture
async def cell(url: str, placement: Placement, turned: Any) -> AsyncIterator[AdoptingCell]:
    """Yield a cell c1 with hosts 1 and 2, where a client imported consumer 7 on host 1. Host 3 is of c2."""
    elsewhere = "sqlite+aiosqlite://" if url.startswith("sqlite") else url
    database = Database(elsewhere, **({"namespace": "cell"} if elsewhere == url else {"inline": True}))
    await migrate(database, *packages("conductor"))
    assert await report(placement, a_report(1), a_report(2), a_report(3, cell="c2")) == ["", "", ""]
    await came_over(placement, 7, on_hosts(1, VCPU=2))
    yield AdoptingCell(database, placement)
    await database.close()


async def came_over(placement: Placement, number: int, held: Any, generation: int | None = None) -> None:
    [got] = await claim(
        placement, an_order(replace(a_claim(number, held, generation=generation), client=True))
    )
    assert isinstance(got, Claimed), got
