"""Compares all Ironic nodes with placement for operators, and removes deleted nodes from placement."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bus.clock import Clock
from bus.protocol import Ask
from bus.resources import AllocationsFound, FindAllocations, FindProviders, Provider, ProvidersFound
from bus.vocabulary import portions
from ironic_sync.core.difference import NodeDifference, allowance, name_of
from ironic_sync.core.known_state import KnownStateRules, Moment
from ironic_sync.following import Publish
from ironic_sync.reader import NodeReads
from ironic_sync.survey import PROVIDERS_A_QUESTION, Survey, SurveyedNode
from ironic_sync.sweep import Sweep
from ironic_sync.worker import FollowedIronic

ALLOW = "berth ironic sweep --allow-removals"
SETTLING_SECONDS = 2.0  # until a build that has just been placed reaches its node

Find = Ask[FindProviders, ProvidersFound]
FindHolders = Ask[FindAllocations, AllocationsFound]


class Comparison(NamedTuple):
    """The differences that a complete comparison of Ironic with placement found."""

    nodes: int  # listed by Ironic
    placed: int  # Ironic nodes in placement
    differences: tuple[NodeDifference, ...]

    def lines(self, share_gone: float) -> list[str]:
        """Return one line of text for each difference, and a summary. If more than the fraction `share_gone`
        of the nodes is missing in Ironic, another line states that no node is removed.
        """
        lines = [str(difference) for difference in self.differences]
        nodes = len({difference.node for difference in self.differences})
        differ = f"{nodes} differ" if nodes else "nothing differs"
        lines.append(f"{self.nodes} nodes in Ironic, {self.placed} in placement: {differ}")
        missing = sum(difference.what == "gone" for difference in self.differences)
        if missing > allowance(self.placed, share_gone):
            implausible = f"{missing} are missing in Ironic, more at once than is plausible"
            lines.append(f"{implausible}: no node is removed until you allow it with `{ALLOW}`")
        return lines


class NodesRemoved(NamedTuple):
    """The deleted nodes that were removed from placement."""

    removed: dict[str, str]  # id of the node → its name; empty if it had none
    held_back: int  # number of deleted nodes (at least) that were not removed because they were too many


def survey_of(ironic: FollowedIronic, api: NodeReads, find: Find, clock: Clock) -> Survey:
    """Return an object that compares this Ironic's nodes with placement, without changing them."""
    return Survey(api, find, ironic.selection, _rules(ironic), lambda: Moment(clock.now(), 0))


async def diff(survey: Survey, holders: FindHolders | None = None) -> Comparison:
    """Return the differences between Ironic's nodes and placement. `holders` queries placement's allocations:
    with it, also compare which instance is on each node.
    """
    read: dict[str, str | None] = {}
    placed = await survey.placed()
    found = [node async for page in survey.everything(placed, read) for node in page]
    found += await survey.each(survey.unread(placed, read), placed)
    differences = [difference for seen in found for difference in seen.differences]
    if holders is not None:
        differences += await _of_instances(survey, holders, placed, read)
    differences.sort(key=lambda difference: (difference.what, difference.node))
    return Comparison(len(read), len(placed), tuple(differences))


async def remove_missing(
    ironic: FollowedIronic, survey: Survey, publish: Publish, clock: Clock, *, allow: bool
) -> NodesRemoved:
    """Remove from placement the nodes that are deleted in Ironic; without `allow`, none if too many are
    deleted. Repair no other difference.
    """
    rules = _rules(ironic)
    removed: dict[str, str] = {}

    async def remove(seen: Sequence[SurveyedNode]) -> None:
        missing = [node for node in seen if node.node is None]
        await publish(*(report for node in missing if (report := node.report(rules)) is not None))
        removed.update((node.uuid, name_of(node.provider) if node.provider else "") for node in missing)

    limits: dict[str, Any] = {"pages_per_second": ironic.pages_per_second, "share": ironic.share_gone}
    sweep = Sweep(survey, remove, clock, allow_removals=allow, **limits)
    await sweep.everything()
    return NodesRemoved(removed, sweep.held_back)


async def _of_instances(
    survey: Survey, holders: FindHolders, placed: Mapping[str, Provider], read: Mapping[str, str | None]
) -> list[NodeDifference]:
    """Return the nodes whose instance in Ironic differs from their consumer in placement, both in `read`
    (node → instance) and in a second read after a pause.

    During the pause a recent build can reach Ironic, so its node is not a difference.
    """
    used = [uuid for uuid, provider in placed.items() if uuid in read and any(provider.used.values())]
    odd = await _odd(holders, used, read)
    if not odd:
        return []
    await asyncio.sleep(SETTLING_SECONDS)
    now = await survey.instances(odd)
    still = await _odd(holders, odd, now)
    same = {uuid: instance for uuid, instance in still.items() if instance == odd[uuid]}
    return [
        NodeDifference(uuid, "instance", now[uuid] or "", has, name_of(placed[uuid]))
        for uuid, has in same.items()
    ]


async def _odd(
    holders: FindHolders, nodes: Iterable[str], instances: Mapping[str, str | None]
) -> dict[str, str]:
    odd = {}
    for some in portions(nodes, PROVIDERS_A_QUESTION):
        for consumer in (await holders(FindAllocations(providers=some))).consumers:
            if consumer.type in ("INSTANCE", None):
                for uuid in set(consumer.allocations) & set(some):
                    if instances[uuid] != consumer.id:
                        odd[uuid] = consumer.id
    return odd


def _rules(ironic: FollowedIronic) -> KnownStateRules:
    return KnownStateRules(place=ironic.selection.place, skip_reserve_in_use=ironic.skip_reserve_in_use)
