"""Decides the adoption of instances that existed before berth."""

from typing import Literal
from uuid import UUID, uuid5

from msgspec.structs import replace

from bus.claims import Choice, ClaimRequested, ClaimResult, ConsumerClaim, Held, Refused, Retired
from bus.guests import BuildAdopted, BuildAdoptRequested
from bus.messages import Attempt, BuildPlaced
from bus.vocabulary import MAX_CAUSE, MAX_ORDINAL, Allocations
from cell_conductor.core import build as say
from cell_conductor.core.answers import holding
from cell_conductor.core.build import Build, Effects
from cell_conductor.core.events import Adoption

AS_IT_WAS = "it was there before berth, and was adopted"


def claim_of(asked: BuildAdoptRequested, held: Held | None = None) -> ClaimRequested:
    """Return a claim of what the instance holds: it raises the generation, so claims with the old one fail.

    Before that is known, return a claim that reads it: no consumer has its generation, so nothing is claimed.
    """
    claim = ConsumerClaim(
        consumer=asked.build,
        generation=MAX_ORDINAL if held is None else held.generation,
        choices=(Choice(allocations=(held or asked.chosen.choice).allocations),),
        project=asked.spec.project,
        user=asked.spec.user,
    )
    return ClaimRequested(claims=(claim,))


def checked_allocations(known: Build | None, asked: BuildAdoptRequested, answer: ClaimResult) -> Held | str:
    """Return the allocations in placement's answer if they can be adopted, else the reason why not."""
    match answer:
        case Held() if not answer.allocations:
            return "it holds nothing by now"
        case Held() if known is not None and known.placed is not None:
            there = asked.chosen.root in answer.roots
            return answer if there else f"it holds nothing of {asked.chosen.host} by now"
        case Held():
            same = answer.allocations == asked.chosen.choice.allocations
            return answer if same else "it holds something else by now: look again"
        case Retired(why=why):
            return f"it has ended for placement ({why})"
        case Refused(refusals=refusals):
            return "; ".join(dict.fromkeys(map(str, refusals))) or "placement refuses to say what it holds"
        case _:
            return f"placement does not say what it holds ({type(answer).__name__.lower()})"


def refusal_reason(build: Build | None, asked: BuildAdoptRequested) -> str:
    """Return why this cell refuses the adoption whatever placement answers, or an empty string."""
    if build is None or build.placed is None:
        return ""
    if build.moving is not None:
        return f"it is in the move {build.moving.id}"
    if build.status != "active":
        return f"its cell has it already: {build.status}, last on {build.host.host}"
    if build.host.root != asked.chosen.root:
        return f"its cell has it on {build.host.host}, not on {asked.chosen.host}"
    return ""


def has_allocations(build: Build | None, generation: int, allocations: Allocations) -> bool:
    """Return whether the cell has a record of the build with exactly these allocations."""
    if build is None or build.placed is None:
        return False
    return build.host.choice.allocations == allocations and build.generation == generation


def adopted(build: Build | None, event: Adoption, now: float) -> tuple[Build | None, Effects]:
    asked = event.asked
    if why := event.why or refusal_reason(build, asked):
        return build, (_adoption_result(asked, "refused", why),)
    if build is None or build.placed is None:
        if event.held is None:  # its cell knew it a moment ago
            return build, (_adoption_result(asked, "refused", "its cell has just forgotten it: look again"),)
        build = _adopted_build(asked, event.held, now, version=0 if build is None else build.version)
        return build, (say.order(build, adopt=True), _adoption_result(asked, "adopted"))
    if event.held is not None:
        known = holding(build, build.at, event.held.allocations)
        if known is not build or known.generation != event.held.generation:
            build = replace(known, generation=event.held.generation)
    if build.attempt == 1 and build.as_placed.request == _request(build.id):  # adopted, and not moved since
        return build, (say.order(build, adopt=True), _adoption_result(asked, "adopted"))
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
    there = Attempt(
        host=asked.chosen.host,
        agent=asked.chosen.agent,
        outcome="built",
        cause=AS_IT_WAS,
        started=now,
        ended=now,
    )
    return Build(
        id=asked.build,
        cell=asked.cell,
        status="active",
        placed=placed,
        version=version,
        attempt=1,
        generation=held.generation,
        started=now,
        attempts=(there,),
        end="active",
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
        why=why[:MAX_CAUSE],
        reply_to=asked.reply_to,
    )
