"""Rankings of a few hosts: placement is a list, and hosts' reports are given by the test."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.candidates import CandidateSource
from bus.clock import Clock
from bus.messages import BuildRequested, HostReported
from bus.queries import Candidate
from bus.reports import HostState
from bus.requests import Flavor
from bus.vocabulary import Resources
from scheduler_worker import ChoicePolicy
from scheduler_worker.composition import plain_scheduler
from scheduler_worker.core.choosing import Choosing, TentativeHosts
from scheduler_worker.core.host_map import HostMap
from scheduler_worker.core.order import BUILD, Order
from scheduler_worker.core.ranking import Pick, Ranking
from scheduler_worker.core.request import RequestOptions, alternatives_of
from scheduler_worker.core.rule import Alternative
from scheduler_worker.dependencies import SchedulerOptions
from scheduler_worker.hosts import HostBook
from scheduler_worker.pending_choices import PendingChoices
from tests.support.index_source import RecordingSource
from tests.support.scheduler_builders import FakePlacement, a_candidate, a_request
from tests.support.schedulers import usual_parts

FLAVORS = tuple(
    Flavor(name=f"f{number}", vcpus=cpus, memory_mb=ram, disk_gb=disk, extra_specs=specs)
    for number, (cpus, ram, disk, specs) in enumerate(
        (
            (1, 512, 1, {}),
            (2, 1024, 5, {}),
            (4, 4096, 10, {"trait:CUSTOM_A": "required"}),
            (1, 256, 0, {"capabilities:hypervisor_type": "qemu"}),
            (3, 3000, 7, {"trait:CUSTOM_B": "forbidden"}),
            (1, 512, 20, {}),
            (1, 1024, 2, {"resources1:CUSTOM_VF": "1"}),
            (1, 512, 0, {**{f"resources{n}:CUSTOM_VF": "1" for n in (1, 2)}, "group_policy": "isolate"}),
        )
    )
)
ONE: Resources = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}


@dataclass
class Hall:
    """Everything from which hosts are chosen: candidates, policy, hosts' reports and pending choices."""

    source: CandidateSource
    policy: ChoicePolicy = field(default_factory=ChoicePolicy)
    book: HostBook = field(default_factory=lambda: HostBook(0.0))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.pending = PendingChoices(self.source, self.book, Clock(monotonic=lambda: self.now))
        self.hosts = HostMap(self.source, self.policy.cells)
        options = SchedulerOptions(policy=self.policy)
        queries, parts = FakePlacement().queries(), usual_parts()
        self.narrowings = plain_scheduler(self.source, queries, Clock(), options, parts).narrowings

    def choosing(self) -> Choosing:
        self.hosts.update()
        seen = self.book.snapshot(self.source, self.now)
        return Choosing(
            self.source, self.hosts, seen, self.policy, self.pending, TentativeHosts(), self.narrowings
        )

    def handle(self, *states: HostState, cell: str = "cell1") -> None:
        for state in states:
            agent = f"agent{state.host.removeprefix('host')}"
            self.book.handle(HostReported(cell=cell, agent=agent, sequence=1, hosts=(state,)), self.now)

    def rank(self, request: BuildRequested | None = None, seed: str = "s") -> Ranking:
        return self.choosing().rank(self.alternative(request or a_request()), seed)

    def alternative(self, request: BuildRequested) -> Alternative:
        return alternatives_of(request, RequestOptions(), self.source.named)[0]

    def order(self, request: BuildRequested) -> Order:
        return Order(
            request,
            ((self.alternative(request),),),
            request.instances,
            purpose=BUILD,
            alternates=request.alternates,
        )


def a_hall(
    *candidates: Candidate, states: Sequence[HostState] = (), policy: ChoicePolicy | None = None
) -> Hall:
    source = RecordingSource(candidates, {candidate.root: dict(candidate.free) for candidate in candidates})
    hall = Hall(source, policy or ChoicePolicy())
    hall.handle(*states)
    return hall


def free(number: int, ram: int, vcpus: int = 8, cell: str = "cell1") -> Candidate:
    return a_candidate(number, free={"VCPU": vcpus, "MEMORY_MB": ram, "DISK_GB": 10_000}, cell=cell)


def take(ranking: Ranking, several: int = 1, avoid: Sequence[str] = ()) -> Pick:
    pick = ranking.take(several, avoid=avoid)
    assert pick is not None
    return pick


def hosts_of(pick: Pick) -> list[str]:
    return list(dict.fromkeys(way.host for way in pick.choices))
