"""Reads which instances claims preempt: they need no headroom afterwards, and free their hosts."""

from collections.abc import Collection, Sequence

from bus.claims import ConsumerClaim
from bus.vocabulary import Id
from features.headroom.held_sizes import HeadroomJoins
from features.preemption.rule import victims_of
from placement_worker.extension import ForPlacement, PlacementNeeds, PlacementPart


def _preempted(claims: Sequence[ConsumerClaim]) -> Collection[Id]:
    return {victim.build for victim in victims_of(claims)}


def part(needs: PlacementNeeds, settings: None) -> PlacementPart:
    needs.of(HeadroomJoins).replaced.append(_preempted)
    return PlacementPart()


PART = ForPlacement(part)
