"""Evaluates moves that are not made: the one judgement of whether a host can be emptied.

A drain's dry run, the dry run of a maintenance window and the windows themselves use it.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from bus.decisions import Decision
from bus.delivery.runner import Bus
from bus.queries import Instance
from bus.resources import Provider
from bus.vocabulary import Id, cause_of
from features.moves.messages import MoveRequested, SupposedDestination

AT_ONCE = 100  # supposed moves in one query; each is evaluated as if the earlier moves had been made


class SupposedPlace(Protocol):
    """A host that a move would get."""

    @property
    def root(self) -> str:
        """The root of the host."""

    @property
    def host(self) -> str: ...

    @property
    def cell(self) -> str: ...


class SupposedMove(Protocol):
    """The answer to the question what would become of a move that was requested now."""

    @property
    def fits(self) -> bool:
        """Whether a host was found."""

    @property
    def refusal(self) -> str:
        """Return why the move would be refused before any host is searched; empty: it would not be."""

    @property
    def placed(self) -> Sequence[SupposedPlace]:
        """The supposed destinations."""

    @property
    def decision(self) -> Decision:
        """The reasons why there is no host."""


@dataclass(frozen=True)
class DryRuns:
    """Evaluates moves for `--dry-run` of commands: PART of the module `dry_runs` of the feature that can.

    `supposed`: returns for each move what would become of it now. Of AT_ONCE moves, each is evaluated as if
    the earlier moves were done. No move may go to one of the closed hosts.
    """

    supposed: Callable[[Bus, Sequence[MoveRequested], Sequence[Provider]], Awaitable[Sequence[SupposedMove]]]


class MoveEvaluation:
    """Evaluates moves in a scheduler without making them. The feature that can offers a subclass."""

    async def supposed(
        self, moves: Sequence[MoveRequested], closed: Collection[Id]
    ) -> Sequence[SupposedMove]:
        """Return for each move what would become of it, as `supposed` of moving.py does for clients."""
        raise NotImplementedError


def why_not(answer: SupposedMove) -> str:
    """Return why an answer has no host for a move: a text with the reason code and a sentence."""
    code = f"[{answer.decision.code}] " if answer.decision.code else ""
    return f"{code}{answer.refusal or 'no host would do'}"


async def moves_off(
    instances: Iterable[Instance],
    asked: MoveRequested,
    suppose: Callable[[Sequence[MoveRequested]], Awaitable[Sequence[SupposedMove]]],
    new_id: Callable[[], Id],
) -> list[SupposedDestination]:
    """Return where each active instance would move if the hosts of all were emptied now. `asked`: the request
    to copy for each move.
    """
    active = [instance for instance in instances if instance.status == "active"]
    requests = [
        structs.replace(asked, move=new_id(), build=instance.build, cell=instance.cell) for instance in active
    ]
    found = zip(active, await suppose(requests), strict=True)
    return [_destination(instance, answer) for instance, answer in found]


def _destination(instance: Instance, answer: SupposedMove) -> SupposedDestination:
    found = SupposedDestination(build=instance.build, root=instance.root)
    if not answer.fits:
        shown = structs.replace(answer.decision, record=None)  # the record is large, and has no host
        return structs.replace(found, why=cause_of(why_not(answer)), decision=shown)
    return structs.replace(found, host=answer.placed[0].host if answer.placed else instance.host)
