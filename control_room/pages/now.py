"""Now: the state of the cloud, sent again every two seconds while the page is open."""

from starlette.requests import Request
from starlette.responses import Response

from bus.host_health import not_up
from control_room.core.alarms import alarms
from control_room.core.now import (
    CellNow,
    NowPage,
    TenMinutes,
    WorkerNow,
    causes,
    p50_and_p99,
    ten_minutes,
)
from control_room.core.windows import summed
from control_room.core.words import duration, several
from control_room.looking import Seen
from control_room.page_refresh import Pace
from control_room.pages.frame import Frame, OpenRoom
from control_room.pages.live import at_once, live

SECONDS = 2.0
SOONEST = 0.17  # seconds between two updates: people do not read more when builds end all the time
SHARE = 0.01  # of a processor that it may take while builds end all the time: sums are read, not followed


class NowPages:
    def __init__(self, room: OpenRoom, frame: Frame) -> None:
        self._room = room
        self._frame = frame
        self._part = ""
        self._made = float("-inf")
        self._stirred = 0
        self._pace = Pace(SHARE, SOONEST)
        self._ten_minutes: TenMinutes | None = None

    async def page(self, request: Request) -> Response:
        part = await at_once(request, self._told()) or self._part or self._frame.part("now_asked.html")
        return self._frame.page(request, "now.html", part=part)

    async def events(self, request: Request) -> Response:
        return live(request, self._told, SECONDS, self._room.hearing.stirring, self._pace)

    async def _told(self) -> str:
        """Return the part, rendered once for all readers."""
        clock, stirring = self._room.clock, self._room.hearing.stirring
        if stirring.count != self._stirred or clock.monotonic() - self._made >= SECONDS * 0.9:
            seen = await self._room.looking.seen()
            self._stirred, self._made = stirring.count, clock.monotonic()
            with self._pace.making():
                self._part = self._frame.part("now_part.html", page=self._page(seen))
        return self._part

    def _page(self, seen: Seen) -> NowPage:
        hearing, now = self._room.hearing, self._room.clock.now()
        past = self._ten_minutes = ten_minutes(hearing.lately, now, self._ten_minutes)
        under_way = hearing.lately.under_way(now)
        whole, minute = summed([past.whole, under_way]), summed([past.minute, under_way])
        agents = hearing.roll.agents(now)
        half, most = p50_and_p99(minute)
        cells = self._cells(seen, now)
        waiting = seen.waiting.answer
        building = [cell.building for cell in cells]
        return NowPage(
            rate=hearing.lately.rate(now),
            in_flight=None if None in building else sum(filter(None, building)),
            waiting=waiting.count if waiting else None,
            p50=half,
            p99=most,
            ended=whole.ends,
            alarms=alarms(
                seen.asked,
                agents,
                minute,
                [cell.name for cell in cells if not cell.enabled],
                waiting.rescued if waiting else 0,
                now,
            ),
            cells=cells,
            speed=past.speed,
            latency=past.latency,
            causes=causes(whole),
            host_failures=whole.host_failures,
            workers=self._workers(seen, now),
            agents=[agent for agent in agents if agent.late(now)][:20],
            late=sum(agent.late(now) for agent in agents),
            now=now,
        )

    def _cells(self, seen: Seen, now: float) -> list[CellNow]:
        found = seen.cells.answer
        enabled = {cell.name: cell.enabled for cell in found.cells} if found else {}
        counts = seen.counts
        states = seen.health.answer.counts if seen.health.answer else {}
        agents = self._room.hearing.roll.agents(now)
        told = []
        for name in self._room.looking.cell_names(seen):
            asked = seen.building.get(name)
            theirs = [agent for agent in agents if agent.cell == name]
            told.append(
                CellNow(
                    name=name,
                    enabled=enabled.get(name, True),
                    hosts=counts.hosts.get(name, 0) if counts else 0,
                    instances=counts.instances.get(name, 0) if counts else 0,
                    building=asked.answer.count if asked and asked.answer else None,
                    agents=len(theirs),
                    late=sum(their.late(now) for their in theirs),
                    closed=not_up(states.get(name, {})),
                    problem=asked.problem if asked else "",
                )
            )
        return told

    def _workers(self, seen: Seen, now: float) -> list[WorkerNow]:
        told = [
            WorkerNow(
                name=questioned.name,
                state="bad" if questioned.problem else "warn" if questioned.seconds > 2 else "good",
                says=questioned.problem or f"answers in {duration(questioned.seconds)}",
            )
            for questioned in seen.asked
        ]
        schedulers = self._room.hearing.roll.schedulers(now)
        for name, lag in schedulers.items():
            state = "good" if lag < 15 else "bad"
            told.append(WorkerNow(name=f"scheduler {name}", state=state, says=f"heard {duration(lag)} ago"))
        agents = self._room.hearing.roll.agents(now)
        if agents:
            late = sum(agent.late(now) for agent in agents)
            says = f"{several(late, 'agent')} not heard in time" if late else "all heard in time"
            longest = duration(max(agent.lag(now) for agent in agents))
            told.append(
                WorkerNow(
                    name=several(len(agents), "agent"),
                    state="bad" if late else "good",
                    says=f"{says}, the longest silence {longest}",
                )
            )
        return told
