"""Whether an instance may be built anew where it is: what an image demands of a host, and nothing of room."""

import msgspec

from bus.candidates import CandidateSource, SenselessQuery
from bus.host_health import DISABLED
from scheduler_worker.core.alternative import Alternative
from scheduler_worker.core.fitting import rules_for
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.view import HostsNow

IMAGE = "image"  # the part of a request that the relevant filters read


def unfit(
    alternative: Alternative, root: str, source: CandidateSource, now: HostsNow, policy: ChoicePolicy
) -> str:
    """Return why the host does not fit the new image of a rebuild, or an empty string.

    The host is judged as if it were empty, because a rebuild needs no further capacity. Only filters that
    read the image count.
    """
    question = msgspec.structs.replace(
        alternative.question,
        roots=(root,),
        not_roots=(),
        not_cells=(),
        cell="",
        zone="",
        root_forbidden=tuple(one for one in alternative.question.root_forbidden if one != DISABLED),
        root_member_of=(),
        root_not_member_of=(),
    )
    try:
        search = source.search(question, empty=True)
    except SenselessQuery as problem:
        return str(problem)
    position = source.position(root)
    if position is None or position not in search.positions:
        return next(
            (f"it lacks {removal.constraint}" for removal in search.removals() if not removal.left),
            "it has gone",
        )
    facts = now.facts(search, position)
    for rule in rules_for(alternative, policy):
        if IMAGE in rule.reads and (refusal := rule.refuses(facts, alternative)) is not None:
            return refusal
    return ""
