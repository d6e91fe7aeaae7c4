"""Seeded durations and failures of a simulated Ironic."""

from dataclasses import dataclass
from typing import Literal

from compute_sim.core.faults import Durations, draw

# The kind of work on a node.
Kind = Literal[
    "verify", "inspect", "clean", "deploy", "delete", "rescue", "unrescue", "service", "adopt", "power",
]  # fmt: skip
# How work fails: in a step, before the first step, or by a timeout of the callback.
Fault = Literal["step", "prepare", "timeout"]

KINDS: tuple[Kind, ...] = (
    "verify", "inspect", "clean", "deploy", "delete", "rescue", "unrescue", "service", "adopt", "power",
)  # fmt: skip
FAULTS: tuple[Fault, ...] = ("step", "prepare", "timeout")


AT_ONCE = Durations("constant", (0.0,))


@dataclass(frozen=True, slots=True)
class SimPlan:
    """Behaviour of a simulated Ironic. Times are in seconds."""

    seed: int = 0
    step_time: Durations = AT_ONCE
    fail: float = 0.0  # share of works that fail in a step
    call_back: bool = False  # works wait for a callback of the node, like real hardware
    automated_clean: bool = True
    patience: float = 2.0  # how long a request waits for a locked node
    sync_every: float = 10.0  # between two checks of the real power states
    sync_retries: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.fail <= 1:
            raise ValueError(f"fail is a share of all works, not {self.fail}")

    def seconds(self, node: str, number: int) -> float:
        """Return the duration of the node's work with this number."""
        if self.step_time.name == "constant":
            return self.step_time.values[0]
        return self.step_time.at(
            draw(self.seed, "time", node, number), draw(self.seed, "more time", node, number)
        )

    def fault(self, node: str, number: int) -> Fault | None:
        """Return the fault of that work, if it fails."""
        return "step" if self.fail and draw(self.seed, "fate", node, number) < self.fail else None
