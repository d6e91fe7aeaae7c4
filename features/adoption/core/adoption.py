"""Decides whether a cell adopts an instance that existed before berth, as pure functions."""

from typing import Any, Literal
from uuid import UUID, uuid5

from msgspec import Struct
from msgspec.structs import replace

from bus.claims import Choice, ClaimRequested, ClaimResult, Held, Refused, Retired
from bus.messages import BuildPlaced
from bus.vocabulary import MAX_ORDINAL, Allocations, cause_of
from cell_conductor.extension import AttemptLimits, Build, Course, Effects, Step, builds, with_allocations
from features.adoption.messages import BuildAdopted, BuildAdoptRequested


class Adoption(Struct, frozen=True):
    """The event that an operator wants to adopt an instance; `why` is the reason if that is impossible, and
    `held` has the instance's allocations in placement.
    """

    asked: BuildAdoptRequested
    held: Held | None = None  # None if the cell has a record of them already
    why: str = ""


class AdoptionCourse(Course):
    """The course of instances that existed before berth: the cell takes them over."""

    events = (Adoption,)

    def step(
        self, build: Build | None, event: Any, now: float, limits: AttemptLimits, kernel: Step
    ) -> tuple[Build | None, Effects]:
        return adopted(build, event, now)


AS_IT_WAS = "it was there before berth, and was adopted"


def claim_of(asked: BuildAdoptRequested, held: Held | None = None) -> ClaimRequested:
    """Return the claim that adopts an instance with the allocations `held`. Without `held`, return a claim
    that only reads the instance's allocations: placement refuses the claim, and answers with them.
    """
    # With an impossible generation, the claim is refused, and the answer has the allocations.
    generation = MAX_ORDINAL if held is None else held.generation
    choice = Choice(allocations=(held or asked.chosen.choice).allocations)
    return builds.claim_of(asked.build, generation, asked.spec, choice)


def checked_allocations(
    known: Build | None, asked: BuildAdoptRequested, answer: ClaimResult | str
) -> Held | str:
    """Return the allocations of an instance to adopt, from placement's answer to the claim that only reads,
    or a text why it cannot be adopted. `known`: the cell's record of the build.
    """
    match answer:
        case Held() if not answer.allocations:
            return "it does not hold any resources now"
        case Held() if known is not None and known.placed is not None:
            on_chosen = asked.chosen.root in answer.roots
            return answer if on_chosen else f"it holds nothing of {asked.chosen.host} by now"
        case Held():
            same = answer.allocations == asked.chosen.choice.allocations
            return answer if same else "its allocations have changed: try again"
        case Retired(why=why):
            return f"it has ended for placement ({why})"
        case str() as why:
            return f"placement refused to judge it: {why}"
        case Refused(refusals=refusals):
            return "; ".join(dict.fromkeys(map(str, refusals))) or "placement does not return its allocations"
        case _:
            return f"placement does not return its allocations ({type(answer).__name__.lower()})"


def refusal_reason(build: Build | None, asked: BuildAdoptRequested) -> str:
    """Return why this cell refuses to adopt an instance because of the cell's record of the build (for
    example: it is in a move); empty if it accepts.
    """
    if build is None or build.placed is None:
        return ""
    if build.status != "active":
        return f"its cell has it already: {build.shown}, last on {build.host.host}"
    if build.host.root != asked.chosen.root:
        return f"its cell has it on {build.host.host}, not on {asked.chosen.host}"
    return ""


def has_allocations(build: Build | None, generation: int, allocations: Allocations) -> bool:
    """Return whether the cell's record of the build has exactly the given allocations and generation."""
    if build is None or build.placed is None:
        return False
    return build.host.choice.allocations == allocations and build.generation == generation


def adopted(build: Build | None, event: Adoption, now: float) -> tuple[Build | None, Effects]:
    """Take over an instance, or refuse it with the reason."""
    asked = event.asked
    if why := event.why or refusal_reason(build, asked):
        return build, (_adoption_result(asked, "refused", why),)
    if build is None or build.placed is None:
        if event.held is None:  # the build was known at first, and has been deleted since
            return build, (_adoption_result(asked, "refused", "its cell has just deleted it: try again"),)
        build = _adopted_build(asked, event.held, now, version=0 if build is None else build.version)
        return build, (builds.order(build, adopt=True), _adoption_result(asked, "adopted"))
    if event.held is not None:
        known = with_allocations(build, build.at, event.held.allocations)
        if known is not build or known.generation != event.held.generation:
            build = replace(known, generation=event.held.generation)
    if build.attempt == asked.attempt and build.as_placed.request == _request(
        build.id
    ):  # the instance was adopted before, and has not moved since
        return build, (builds.order(build, adopt=True), _adoption_result(asked, "adopted"))
    return build, (_adoption_result(asked, "known"),)


def _adopted_build(asked: BuildAdoptRequested, held: Held, now: float, version: int) -> Build:
    placed = BuildPlaced(
        build=asked.build,
        request=_request(asked.build),
        cell=asked.cell,
        chosen=replace(asked.chosen, choice=Choice(allocations=held.allocations)),
        generation=held.generation,
        spec=asked.spec,
    )
    built = builds.attempt_over(asked.chosen, "built", AS_IT_WAS, now, now)
    build = builds.new_build(placed, now)
    return replace(
        build, status="active", version=version, attempt=asked.attempt, attempts=(built,), end="active"
    )


def _request(build: str) -> str:
    return str(uuid5(UUID(build), "adopted"))


def _adoption_result(
    asked: BuildAdoptRequested, outcome: Literal["adopted", "known", "refused"], why: str = ""
) -> BuildAdopted:
    return BuildAdopted(
        build=asked.build,
        cell=asked.cell,
        outcome=outcome,
        host=asked.chosen.host,
        why=cause_of(why),
        reply_to=asked.reply_to,
    )
