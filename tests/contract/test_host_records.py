"""Records of hosts that are down or closed, between one start of a scheduler and the next."""

from msgspec.structs import replace
from prometheus_client import REGISTRY

from bus.host_health import FindHostHealth
from bus.messages import HostReported
from bus.sql.database import Database
from bus.sql.migrations import migrate
from scheduler_worker.host_records import HostRecords
from scheduler_worker.hosts import HostBook
from scheduler_worker.store import host_health
from tests.support.rule_builders import ListedHosts, the_facts
from tests.support.scheduler_builders import TurnedClock, a_state

HOSTS = [replace(the_facts(number), agent="agent") for number in (1, 2, 3)]
WHY = "no heartbeat from it, though its agent agent reports other hosts"


class Life:
    """A scheduler from one start to its end, by kill -9."""

    def __init__(self, database: Database, time: TurnedClock) -> None:
        self.database, self.time = database, time
        self.source = ListedHosts.of(HOSTS)
        self.book = HostBook(time.now)
        self.records = HostRecords(self.book, self.source, database, time.clock)

    async def load(self) -> "Life":
        await self.records.load()
        self.book.opened(self.time.now)
        return self

    async def heartbeats(self, *numbers: int, seconds: int = 1, enabled: bool = True) -> None:
        for _ in range(seconds):
            self.time.now += 1.0
            states = tuple(a_state(number, enabled=enabled) for number in numbers)
            sequence = int(self.time.now)
            self.book.handle(
                HostReported(cell="cell1", agent="agent", sequence=sequence, hosts=states), self.time.now
            )
        await self.records.store()

    def why(self) -> list[str]:
        seen = self.book.level(self.source, self.time.now)
        found = []
        for facts, position in zip(HOSTS, [host.position for host in self.source.listed], strict=True):
            state = self.book.level(self.source, self.time.now).columns.states[seen.slot_at[position]]
            closed = "" if state is None or state.enabled else "disabled"
            found.append(self.book.why_down(facts.cell, facts.root, facts.agent, self.time.now) or closed)
        return found

    async def stored(self) -> list[str]:
        async with self.database.read() as tx:
            return [health.host for health in await host_health.page(tx, ("", ""), 10)]


async def test_the_next_scheduler_knows_which_hosts_were_down_or_closed(database: Database) -> None:
    await migrate(database, "scheduler_worker")
    time = TurnedClock()
    first = await Life(database, time).load()
    await first.heartbeats(1, 2, 3)
    down = time.now
    await first.heartbeats(1, seconds=35)
    await first.heartbeats(3, enabled=False)
    assert await first.stored() == ["host2", "host3"]

    second = await Life(database, time).load()
    moment = "1970-01-01 00:16:41 UTC"
    assert down == 1001.0
    assert second.why() == ["", f"down since {moment}: {WHY}", "disabled"]
    await second.heartbeats(1, 2)
    assert second.why() == ["", "", "disabled"]
    await second.heartbeats(1, 2, 3)
    assert (second.why(), await second.stored()) == (["", "", ""], [])


async def test_hosts_that_are_not_up_are_found_by_pages_and_all_are_counted(database: Database) -> None:
    await migrate(database, "scheduler_worker")
    time = TurnedClock()
    life = await Life(database, time).load()
    await life.heartbeats(1, 2, 3)
    await life.heartbeats(1, seconds=35)
    first = await life.records.find(FindHostHealth(limit=1, counted=True))
    assert ([host.host for host in first.hosts], first.more) == (["host2"], True)
    assert first.counts == {"cell1": {"up": 1, "down": 2}}
    await life.records.measure()
    gauge = [
        REGISTRY.get_sample_value("berth_scheduler_hosts", {"status": state}) for state in ("up", "down")
    ]
    assert gauge == [1, 2]
    rest = await life.records.find(FindHostHealth(after=first.hosts[0].root))
    assert ([host.host for host in rest.hosts], rest.more) == (["host3"], False)
    assert (await life.records.find(FindHostHealth(roots=(HOSTS[0].root,)))).hosts == ()


async def test_a_row_that_another_scheduler_left_behind_goes_with_the_heartbeat_of_its_host(
    database: Database,
) -> None:
    await migrate(database, "scheduler_worker")
    time = TurnedClock()
    first, second = await Life(database, time).load(), await Life(database, time).load()
    await first.heartbeats(1, 2, 3)
    await first.heartbeats(1, seconds=35)
    await second.heartbeats(1, 2, 3)  # the first one is killed before it comes
    assert await second.stored() == ["host2", "host3"]
    third = await Life(database, time).load()
    await third.heartbeats(1, 2)
    assert await third.stored() == ["host3"]


async def test_a_record_stays_while_placement_does_not_have_the_host_and_is_pruned(
    database: Database,
) -> None:
    await migrate(database, "scheduler_worker")
    time = TurnedClock()
    first = await Life(database, time).load()
    await first.heartbeats(1, 2, 3)
    await first.heartbeats(1, 3, seconds=35)
    first.source.listed, first.source.layout = first.source.listed[:1], 2
    await first.heartbeats(1)
    assert await first.stored() == ["host2"]
    await first.records.prune()
    assert await first.stored() == []
