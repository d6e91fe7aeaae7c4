"""Active builds for which placement does not hold what their cells have: nothing, elsewhere, or otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bus.guests import GuestTold
from bus.vocabulary import Allocations

if TYPE_CHECKING:
    from cell_conductor import PlaceByCell
    from placement_worker import TreesOfConsumer

Wrong = Literal["missing", "elsewhere", "amounts", "outdated"]


@dataclass(frozen=True)
class Misheld:
    """One of them, as both have it."""

    wrong: Wrong
    place: PlaceByCell
    generation: int | None  # placement's, of what it holds; None: nothing
    held: Allocations
    sentence: str
    begun: bool = False  # a move of it has, that its cell may not have heard of

    def __str__(self) -> str:
        return self.sentence


def misheld(
    places: Mapping[str, PlaceByCell],
    trees: Mapping[str, TreesOfConsumer],
    holdings: Mapping[str, tuple[int, Allocations, float]],
    moving: Collection[str],
) -> Iterator[Misheld]:
    """`places`: of builds that nobody has changed while placement was read. `moving`: a move of theirs has
    begun that their cells may not have heard of; what they hold is the move's affair.
    """
    for build, place in places.items():
        at = f"{build}: active on {place.host.root}"
        if build not in trees and build not in holdings:
            said = f"{at} in cell {place.cell}, and holds nothing"
            yield Misheld("missing", place, None, {}, said, build in moving)
            continue
        if build not in trees or build not in holdings:
            continue  # it has just begun to hold something, or ended
        generation, held, _ = holdings[build]
        if not trees[build].may_be_on(place.host.root):
            said = f"{at}, but holds resources of {', '.join(trees[build].trees)}"
            yield Misheld("elsewhere", place, generation, held, said, build in moving)
        elif build in moving:
            continue
        elif (there := _sums(held)) != (wanted := _sums(place.host.choice.allocations)):
            said = f"{at} with {_told(wanted)}, but holds {_told(there)}"
            yield Misheld("amounts", place, generation, held, said)
        elif generation != place.generation:
            said = f"{at}: its cell knows generation {place.generation} of it, placement {generation}"
            yield Misheld("outdated", place, generation, held, said)


def doubt(
    one: Misheld,
    here: Sequence[GuestTold] | None,
    there: Mapping[str, Sequence[GuestTold] | None],
) -> str:
    """Why placement is not made to hold what the cell has; empty: nothing speaks against it.

    `here`: what the agent of its host has of it; `there`: those of the hosts it is held of. None: no word.
    Nobody's word alone moves what is held: where placement has something, the agent must say what the cell
    says, and nobody may have the guest where placement has it.
    """
    place = one.place
    host, agent = place.host.host, place.host.agent
    if one.begun:
        return "a move of it has begun that its cell has not heard of"
    if one.wrong == "outdated":
        return ""  # where and what is beyond doubt
    if here is None:
        return "" if one.wrong == "missing" else f"agent {agent} of {host} does not say what it has"
    own = [guest for guest in here if (guest.attempt, guest.root) == (place.attempt, place.host.root)]
    if not own:
        return f"agent {agent} has no guest of its attempt {place.attempt} on {host}"
    if len(own) < len(here):
        return f"agent {agent} has more than one guest of it"
    if (has := _sums(own[0].allocations)) != _sums(place.host.choice.allocations):
        return f"agent {agent} has it with {_told(has)}"
    for name, guests in there.items():
        if guests is None:
            return f"nobody says what runs on {name}, where it is held"
        if any(guest.root != place.host.root for guest in guests):
            return f"there is a guest of it on {name}, too"
    return ""


def _sums(held: Allocations) -> Counter[str]:
    """Of which provider of its tree it is may change with the tree; how much it is may not."""
    sums: Counter[str] = Counter()
    for resources in held.values():
        sums.update(resources)
    return sums


def _told(sums: Counter[str]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(sums.items())) or "nothing"
