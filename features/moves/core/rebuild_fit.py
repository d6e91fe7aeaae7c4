"""Decides whether the new image for a rebuild fits on the instance's host."""

import msgspec

from bus.candidates import CandidateSource, SenselessQuery
from bus.host_health import DISABLED
from scheduler_worker.extension import Alternative, ChoicePolicy, HostsNow

IMAGE = "image"  # the field of a request that filters for images read


def unfit(
    alternative: Alternative, root: str, source: CandidateSource, now: HostsNow, policy: ChoicePolicy
) -> str:
    """Return why a rebuild's new image would not fit on a host even if the host were empty; "" if it fits."""
    question = msgspec.structs.replace(
        alternative.question,
        roots=(root,),
        not_roots=(),
        not_cells=(),
        cell="",
        zone="",
        root_forbidden=tuple(trait for trait in alternative.question.root_forbidden if trait != DISABLED),
        root_member_of=(),
        root_not_member_of=(),
    )
    try:
        search = source.search(question, empty=True)
    except SenselessQuery as problem:
        return str(problem)
    position = source.position(root)
    if position is None or position not in search.positions:
        lacks = (removal.constraint for removal in search.removals() if not removal.left)
        return next((f"it lacks {constraint}" for constraint in lacks), "it was deleted")
    facts = now.facts(search, position)
    rules = [rule for rule in policy.rules_for(alternative) if IMAGE in rule.reads]
    return next((why for rule in rules if (why := rule.refuses(facts, alternative)) is not None), "")
