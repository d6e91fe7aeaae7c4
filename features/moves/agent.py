"""The part of moves in simulated agents."""

from collections.abc import Sequence

from bus.worker import WorkerRows, every, on
from compute_sim.extension import AgentNeeds, AgentPart, ForAgent, GuestDriver, SimulatedAgent
from features.moves.agent_moves import SimulatedMoves, moves_of
from features.moves.driver_rules import rules_of
from features.moves.messages import AGENT_MOVE, AGENT_MOVED

BUILT_MOVES = "evacuate", "unshelve"  # moves that build the guest again
SIMULATED_MOVES = "migrate", "resize", "live", "shelve", "rebuild", *BUILT_MOVES


def part(needs: AgentNeeds, settings: None) -> AgentPart:
    options = needs.options

    def rows(agent: SimulatedAgent, cell: str) -> WorkerRows:
        moves = SimulatedMoves(agent)
        ordered = AGENT_MOVE.at(cell=cell, agent=agent.agent)
        return WorkerRows(
            consumes=[on(ordered, moves.move, emits=[AGENT_MOVED], concurrency=options.concurrency)],
            timers=[every(options.progress_every, moves.progress, emits=[AGENT_MOVED])],
        )

    return AgentPart(name="moves", rows=rows, operations=_operations, driver_rules=rules_of)


def _operations(driver: GuestDriver | None) -> Sequence[str]:
    return SIMULATED_MOVES if driver is None else (*moves_of(driver), *BUILT_MOVES)


PART = ForAgent(part)
