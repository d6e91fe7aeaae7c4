"""Tests a changed policy against the recorded decisions of the last days."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from msgspec import structs

from berth.kit import (
    Settings,
    added,
    ask_cells,
    asked_amounts,
    instance_pages,
    known_cells,
    recorded_request,
    refused_builds,
)
from bus import parts, topics
from bus.decisions import FindRefused, RefusedBuild
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.messages import BuildRequested
from bus.queries import FindBuilds, FindDecision, FindInstances, Instance, InstanceStatus
from bus.vocabulary import portions
from features.policies.core.policy_replay import reweighed
from features.policies.decisions import RecordedDecision, RepeatedDecision, Source, Verdict
from features.policies.messages import (
    MOST_TRIED,
    TRY_POLICY,
    TrialChoice,
    TrialPolicy,
    TrialResult,
    TryPolicy,
)
from features.policies.policy_changes import ChangedPolicy
from features.policies.stored_changes import MODULE, ChangesPart

EVERY: tuple[InstanceStatus, ...] = (
    "building", "swapping", "active", "moving", "verifying", "shelved", "error", "deleting", "deleted"
)  # fmt: skip
RELEASED = ("shelved", "error", "deleted")  # instances without allocations
SECONDS = 60.0  # time limit for an answer to a query
_BUILDS = 100  # in one query
_encode = parts.encoder(order="deterministic").encode


@dataclass(frozen=True)
class Gathered:
    """The recorded decisions, newest first."""

    decisions: Sequence[RecordedDecision]
    omitted: int = 0  # older decisions beyond the limit


async def recorded_decisions(
    bus: Bus, settings: Settings, since: float, project: str, limit: int, until: float = math.inf
) -> Gathered:
    """Return the newest decisions between the times `since` and `until`, at most `limit`: of placed builds
    from their cells, of builds without a host from schedulers. `project` "": of all projects. Raise
    OperationRefused if a cell does not answer.
    """
    cells = await known_cells(bus, settings)
    question = FindInstances(cell="any", project=project, since=since, statuses=EVERY)

    async def instances(cell: str) -> list[Instance]:
        pages = instance_pages(bus, structs.replace(question, cell=cell))
        return [instance async for page in pages for instance in page.instances]

    placed, silent = await ask_cells(cells, instances)
    if silent:
        raise OperationRefused(f"no answer from {', '.join(silent)}: its decisions are unknown")
    refused = await refused_builds(bus, FindRefused(since=since, project=project))
    of_request = {build.request: build for build in refused}
    found = [(instance.since, instance.build, instance) for listed in placed.values() for instance in listed]
    ends = [(build.since, build.build, build) for build in of_request.values()]
    every = [entry for entry in (*found, *ends) if entry[0] <= until]
    newest = sorted(every, key=lambda entry: entry[:2], reverse=True)
    chosen = [entry for *_, entry in newest[:limit]]
    decisions = [
        *await _placed(bus, [entry for entry in chosen if isinstance(entry, Instance)]),
        *await _refused(bus, [entry for entry in chosen if isinstance(entry, RefusedBuild)]),
    ]
    decisions.sort(key=lambda decision: (-decision.at, decision.build))
    return Gathered(decisions, max(len(newest) - limit, 0))


async def _placed(bus: Bus, instances: Sequence[Instance]) -> list[RecordedDecision]:
    ask, found = bus.asker(topics.FIND_BUILDS), list[RecordedDecision]()
    of_cell: dict[str, list[Instance]] = defaultdict(list)
    for instance in instances:
        of_cell[instance.cell].append(instance)
    for cell, listed in of_cell.items():
        at = {instance.build: instance.since for instance in listed}
        for some in portions(at, _BUILDS):
            for build in (await ask(FindBuilds(cell=cell, builds=tuple(some)))).builds:
                chosen, record = build.placed.chosen, build.placed.decision.record
                request = recorded_request(build)
                there = build.status not in RELEASED
                found.append(
                    RecordedDecision(
                        build.build, at[build.build], request, chosen.host, chosen.root, record,
                        summed(chosen.choice.allocations.values()), exists=there,
                        replaces=build.placed.parts.replace_others,
                    )
                )  # fmt: skip
    return found


async def _refused(bus: Bus, builds: Sequence[RefusedBuild]) -> list[RecordedDecision]:
    ask, found = bus.asker(topics.DECISION), list[RecordedDecision]()
    for build in builds:
        decided = await ask(FindDecision(id=build.build))
        if decided.request is not None and decided.request.instances:
            request = structs.replace(decided.request, alternates=0)
            for part in added(ChangesPart, MODULE):
                request = part.as_tried(request)
            count, amounts = len(request.instances), asked_amounts(request)
            found.append(
                RecordedDecision(build.build, build.since, request, amounts=amounts, instances=count)
            )
    return found


def summed(resources: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for amounts in resources:
        total.update(amounts)
    return total


async def tested(
    bus: Bus, decisions: Sequence[RecordedDecision], changed: ChangedPolicy, on_tested: Callable[[int], None]
) -> list[RepeatedDecision]:
    """Return each decision with its host without and with the changed policy. A decision is made again from
    its record if the record shows the effect of the change; if not, on the present hosts, once for equal
    requests. `on_tested` is called with the number of decisions tested since its last call.
    """
    results: dict[str, RepeatedDecision] = {}
    left: dict[bytes, list[RecordedDecision]] = defaultdict(list)
    for decision in decisions:
        again = from_record(decision, changed)
        if again is None:
            left[_class_of(decision.request)].append(decision)
        else:
            results[decision.build] = again
    on_tested(len(results))
    representatives = [equal[0].request for equal in left.values()]
    equals = iter(left.values())
    most = min((each.at_once for each in changed.stored), default=MOST_TRIED)
    for some in portions(representatives, most):
        for result in await _tried(bus, changed.trial, some):
            for decision in (same := next(equals)):
                results[decision.build] = on_hosts(decision, result, "present hosts")
            on_tested(len(same))
    return [results[decision.build] for decision in decisions]


async def _tried(bus: Bus, policy: TrialPolicy, requests: Iterable[BuildRequested]) -> Sequence[TrialResult]:
    ask = bus.asker(TRY_POLICY, timeout=SECONDS)
    answer = await ask(TryPolicy(policy=policy, requests=tuple(requests)))
    if answer.refusal:
        raise OperationRefused(answer.refusal)
    return answer.results


def _class_of(request: BuildRequested) -> bytes:
    """Return a key of a request; every filter and weigher treats requests with equal keys alike."""
    plain = structs.replace(request, request="", instances=(), name="", reply_to="", metadata={}, user="")
    return _encode((plain, len(request.instances)))


def from_record(decision: RecordedDecision, changed: ChangedPolicy) -> RepeatedDecision | None:
    """Return the decision made again from its record; None if the record lacks something that the change
    needs.
    """
    numbers, record = changed.only_numbers, decision.record
    if (
        numbers is None
        or record is None
        or not all(each.shows_in_record(decision) for each in changed.stored)
    ):
        return None
    again = reweighed(decision.build, record, numbers.multipliers, numbers.subset, numbers.near)
    if again is None or again.host is None:
        return None
    verdict: Verdict = "same" if again.host.root == decision.root else "elsewhere"
    return _tested(decision, (decision.host, again.host.host), verdict, "record")


def on_hosts(decision: RecordedDecision, result: TrialResult, by: Source) -> RepeatedDecision:
    """Return a decision with the hosts that an equal request gets without and with the change, from the trial
    `result`. `by`: whether present or past hosts were searched.
    """
    present, trial = result.present, result.trial
    verdict: Verdict = "same"
    if present.roots and trial.roots:
        verdict = "same" if present.roots == trial.roots else "elsewhere"
    elif present.roots:
        verdict = "nowhere"
    else:
        verdict = "placed" if trial.roots else "none"
    hosts = _named(present), _named(trial)
    tested = _tested(decision, hosts, verdict, by, trial.why if verdict == "nowhere" else "")
    return structs.replace(tested, replaces=trial.replaces)


def _named(choice: TrialChoice) -> str:
    more = len(choice.hosts) - 1
    return "" if not choice.hosts else choice.hosts[0] + (f" and {more} more" if more else "")


def _tested(
    decision: RecordedDecision, hosts: tuple[str, str], verdict: Verdict, by: Source, why: str = ""
) -> RepeatedDecision:
    request = decision.request
    return RepeatedDecision(
        build=decision.build, project=request.project, flavor=request.flavor.name, at=decision.at,
        recorded=decision.host, before=hosts[0], after=hosts[1], verdict=verdict, by=by, why=why,
    )  # fmt: skip


DIFFERENT: tuple[Verdict, ...] = ("elsewhere", "nowhere", "placed")


@dataclass(frozen=True)
class PolicyTest:
    """The result of the test of a policy: the decisions made again, and the number of each verdict."""

    decisions: Sequence[RepeatedDecision]
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        counts = Counter(decision.verdict for decision in self.decisions)
        object.__setattr__(self, "counts", {verdict: counts[verdict] for verdict in get_args(Verdict)})

    @property
    def differences(self) -> list[RepeatedDecision]:
        """Return the decisions with another result, first the decisions that lose their host."""
        found = [decision for decision in self.decisions if decision.verdict in DIFFERENT]
        return sorted(found, key=lambda decision: decision.verdict != "nowhere")

    def passes(self, allow: float) -> bool:
        """Return whether at most `allow` percent of the decisions differ."""
        return 100.0 * len(self.differences) <= allow * len(self.decisions)
