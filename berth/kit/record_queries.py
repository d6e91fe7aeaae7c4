"""Queries all workers for their records about a build, request or move."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from berth.features import added
from berth.kit.cells import ask_cells, known_cells
from berth.kit.explanations import BuildExplanation
from berth.kit.options import positional
from berth.kit.terminal import Cli
from berth.kit.timeline import SECONDS, Happening, acts_found, of_acts, of_build
from berth.settings import Settings
from bus import topics
from bus.audit_trail import ActRecord, FindActs
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.queries import BuildStands, DecisionFound, FindBuilds, FindDecision

_SCHEDULER = "the scheduler"


ExplainedId = Annotated[
    str, positional("Its uuid, or at least 8 characters of it.", metavar="BUILD|REQUEST|MOVE")
]


@dataclass(frozen=True)
class KnownRecords:
    """The records of cells and of a scheduler about an id, and the workers that did not answer."""

    stands: tuple[BuildStands, ...]  # the build, or the builds of the request
    decided: DecisionFound
    explained: tuple[BuildExplanation, ...]  # what features add
    silent: tuple[str, ...]  # workers that did not answer

    @property
    def subject(self) -> str:
        """Return what the id is, such as "a move", if a feature has it; empty: of a build or request."""
        return next((each.subject for each in self.explained if each.subject), "")


async def _nothing(bus: Bus, id_: str, builds: Sequence[BuildStands], cells: Sequence[str]) -> tuple[()]:
    return ()


@dataclass(frozen=True, kw_only=True)
class ExplainingPart:
    """Explains builds for `berth why`. `reasons` returns explanations of a build, request or move; it gets
    the bus, the id, the builds and the cells. `happened` gets the same, and returns what happened to the
    builds, for the option --timeline. `decide_now` answers the option --now and returns the exit code, or
    None if the recorded decision is of another feature; None: it does not answer this option.
    """

    reasons: Callable[
        [Bus, str, Sequence[BuildStands], Sequence[str]], Awaitable[Sequence[BuildExplanation]]
    ] = _nothing
    happened: Callable[[Bus, str, Sequence[BuildStands], Sequence[str]], Awaitable[Sequence[Happening]]] = (
        _nothing
    )
    decide_now: Callable[[Cli, Bus, KnownRecords], Awaitable[int | None]] | None = None


async def known_records(settings: Settings, bus: Bus, id_: str) -> KnownRecords:
    """Query all cells, a scheduler and placement; return their records about a build, request or move. Raise
    OperationRefused without any record."""
    find = bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
    decision = bus.asker(topics.DECISION, timeout=SECONDS)
    cells = await known_cells(bus, settings)
    (decided, without_answer), (builds, silent) = await asyncio.gather(
        ask_cells([_SCHEDULER], lambda _: decision(FindDecision(id=id_))),
        ask_cells(cells, lambda cell: find(FindBuilds(cell=cell, builds=(id_,)))),
    )
    stands = tuple(stands for answer in builds.values() for stands in answer.builds)
    found = await asyncio.gather(
        *(part.reasons(bus, id_, stands, cells) for part in added(ExplainingPart, "explaining"))
    )
    explained = [each for several in found for each in several]
    known = KnownRecords(
        stands,
        decided.get(_SCHEDULER, DecisionFound()),
        tuple(sorted(explained, key=lambda each: not each.subject)),
        (*without_answer, *(f"cell {cell}" for cell in silent)),
    )
    if not known.stands and not known.subject and not known.decided.known:
        unanswered = f" ({', '.join(known.silent)} did not answer)" if known.silent else ""
        raise OperationRefused(f"there is no build, request or move {id_}{unanswered}")
    return known


async def timeline(settings: Settings, bus: Bus, known: KnownRecords, id_: str) -> list[Happening]:
    """Return what happened to a build or to the builds of a request, in no sequence: from the records of its
    cell, of features, and of the audit trail.
    """
    cells = await known_cells(bus, settings)
    added_by = [part.happened(bus, id_, known.stands, cells) for part in added(ExplainingPart, "explaining")]
    of_features = await asyncio.gather(*added_by)
    ids = dict.fromkeys((id_, *(build.build for build in known.stands)))

    async def acts_on(target: str) -> list[ActRecord]:
        return [act async for act in acts_found(bus, FindActs(target=target))]

    acts = await asyncio.gather(*map(acts_on, ids))
    return [
        *(each for build in known.stands for each in of_build(build)),
        *(each for several in of_features for each in several),
        *of_acts({act.id: act for found in acts for act in found}.values()),
    ]
