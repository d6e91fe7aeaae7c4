"""Questions about candidates that cannot be meant are refused, naming the field."""

from bus.candidates import SenselessQuery
from bus.queries import FindCandidates
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_GROUPS


def check(query: FindCandidates) -> None:
    groups, suffixes = query.groups, {group.suffix for group in query.groups}
    if len(groups) > MAX_GROUPS:
        raise SenselessQuery(f"groups: {len(groups)} of them, at most {MAX_GROUPS}")
    tied = {suffix for one in query.same_subtree for suffix in one} - {""}
    before: set[str] = set()
    for position, group in enumerate(groups):
        if group.suffix in before:
            which = repr(group.suffix) if group.suffix else "without a suffix"
            raise SenselessQuery(f"groups[{position}].suffix: there is a group {which} already")
        before.add(group.suffix)
        if not group.resources and group.suffix not in tied:
            why = ", and no same_subtree names it" if group.suffix else ""
            raise SenselessQuery(f"groups[{position}].resources: empty{why}")
        if group.required or group.required_any or group.member_of:
            _check_demands(group, f"groups[{position}]")
    if not any(group.resources for group in groups):
        raise SenselessQuery("groups: none of them asks for resources")
    for position, one in enumerate(query.same_subtree):
        for suffix in one:
            if not suffix or suffix not in suffixes:
                raise SenselessQuery(f"same_subtree[{position}]: there is no group with suffix {suffix!r}")
    for position, suffix in enumerate(query.isolated):
        if not suffix or suffix not in suffixes:
            raise SenselessQuery(f"isolated[{position}]: there is no group with suffix {suffix!r}")
    for index, choice in enumerate(query.root_member_of):
        if not choice:
            raise SenselessQuery(f"root_member_of[{index}]: empty")
    for trait in query.root_required:
        if trait in query.root_forbidden:
            raise SenselessQuery(f"root_forbidden: {trait} is required as well")


def _check_demands(group: ResourceGroup, at: str) -> None:
    forbidden = set(group.forbidden)
    for trait in group.required:
        if trait in forbidden:
            raise SenselessQuery(f"{at}.forbidden: {trait} is required as well")
    for index, traits in enumerate(group.required_any):
        if forbidden.issuperset(traits):
            raise SenselessQuery(f"{at}.required_any[{index}]: {'all are forbidden' if traits else 'empty'}")
    for index, choice in enumerate(group.member_of):
        if not choice:
            raise SenselessQuery(f"{at}.member_of[{index}]: empty")
