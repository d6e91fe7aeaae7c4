"""Decides whether the new image for a rebuild by Nova fits on the instance's host."""

from collections.abc import Mapping

from bus.candidates import CandidateSource, PlacedHost
from scheduler_worker.extension import Alternative, ChoicePolicy, HostsNow

IMAGE = "image"  # the field of a request that filters for images read


class _Unsearched:
    """The result of a search that contains one host and no amounts, for filters that compare the host with
    the image of a virtual machine.
    """

    def __init__(self, placed: PlacedHost) -> None:
        self._placed = placed

    def host(self, position: int) -> PlacedHost:
        return self._placed

    def amounts(self, position: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
        return {}, {}


def unfit_image(
    alternative: Alternative, root: str, source: CandidateSource, now: HostsNow, policy: ChoicePolicy
) -> str:
    """Return why a host does not fit the new image for a rebuild, by Nova, of an instance on the host; "" if
    it fits.

    As in Nova, only the image is checked: the instance has its resources already, and its flavor is
    unchanged.
    """
    placed = next((host for host in source.hosts() if host.uuid == root), None)
    if placed is None:
        return "it was deleted"
    if placed.cell in alternative.question.not_cells:
        return f"its cell {placed.cell} is disabled"
    image = alternative.request.image
    if lacking := [trait for trait in (image.traits_required if image else ()) if trait not in placed.traits]:
        return f"it lacks {lacking[0]}"
    facts = now.facts(_Unsearched(placed), placed.position)
    # `rules_for` cannot be used: it returns only the filter `up` for a forced host, and the present host is
    # forced here
    rules = [rule for rule in policy.rules if IMAGE in rule.reads and rule.concerns(alternative)]
    return next((why for rule in rules if (why := rule.refuses(facts, alternative)) is not None), "")
