"""Derives the durations and outcomes of builds and the power failures of a simulated agent from a seed."""

from dataclasses import dataclass
from hashlib import blake2b
from math import cos, exp, log, pi, sqrt
from typing import Literal, cast

Kind = Literal["built", "reschedule", "abort", "hang", "done", "failed"]

_RESCHEDULE = (
    "could not start the domain: no bootable device",
    "network plug timed out waiting for the switch",
    "no space left on the image cache",
    "the hypervisor stopped answering",
)
_PHASES: dict[str, str] = {
    "prepare": "the pre-check refused it: its CPU cannot be had here",
    "send": "the copy failed: the connection to the other host was lost",
    "start": "could not start the domain: no bootable device",
    "resume": "could not start the domain again: its disk is damaged",
    "rebuild": "the image could not be fetched",
}
_ABORT = ("the image is corrupt: checksum mismatch", "the volume could not be prepared")


def draw(*key: object) -> float:
    """Return a reproducible pseudo-random number in [0, 1), derived from the arguments by a hash."""
    digest = blake2b("|".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True, slots=True)
class Durations:
    """A distribution of build times in seconds: constant:s, uniform:from,to, exponential:mean or
    lognormal:median,sigma.
    """

    name: str
    values: tuple[float, ...]

    @staticmethod
    def parse(text: str) -> "Durations":
        """Read a distribution such as `uniform:1,5`; refuse another form."""
        name, _, rest = text.partition(":")
        wanted = {"constant": 1, "uniform": 2, "exponential": 1, "lognormal": 2}.get(name)
        try:
            values = tuple(float(value) for value in rest.split(","))
        except ValueError:
            values = ()
        if wanted is None or len(values) != wanted or min(values) < 0:
            known = "constant:s, uniform:from,to, exponential:mean, lognormal:median,sigma"
            raise ValueError(f"{text!r} is not a duration: {known}")
        return Durations(name, values)

    def at(self, first: float, second: float) -> float:
        """Return a random duration of this distribution, computed from two random numbers in [0, 1)."""
        match self.name:
            case "uniform":
                low, high = self.values
                return low + (high - low) * first
            case "exponential":
                return -self.values[0] * log(1 - first)
            case "lognormal":
                median, sigma = self.values
                return median * exp(sigma * sqrt(-2 * log(1 - first)) * cos(2 * pi * second))
            case _:
                return self.values[0]


@dataclass(frozen=True, slots=True)
class Fate:
    """The planned outcome and duration of a build attempt, or of a phase of a move, on a simulated host."""

    kind: Kind
    seconds: float
    cause: str = ""


@dataclass(frozen=True, slots=True)
class MoveFaults:
    """The fraction of failures for each phase of moves; `hang` is the fraction of phases that never end."""

    prepare: float = 0.0
    send: float = 0.0
    start: float = 0.0
    resume: float = 0.0
    rebuild: float = 0.0
    hang: float = 0.0

    def __post_init__(self) -> None:
        shares = (self.prepare, self.send, self.start, self.resume, self.rebuild)
        if min(*shares, self.hang) < 0 or max(shares) + self.hang > 1:
            raise ValueError(f"what fails and what hangs are shares of all phases, not {self}")

    @staticmethod
    def of_each(share: float, hang: float = 0.0) -> "MoveFaults":
        """Return a plan in which each phase of a move fails with the probability `share`, and hangs with the
        probability `hang`; `resume` never fails.
        """
        return MoveFaults(prepare=share, send=share, start=share, rebuild=share, hang=hang)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The planned outcomes and durations of simulated builds and moves: the shares of build attempts that
    fail with a retry (`reschedule`), fail without a retry (`abort`), or hang.
    """

    seed: int = 0
    reschedule: float = 0.0
    abort: float = 0.0
    hang: float = 0.0
    first_attempt_only: bool = True  # later attempts succeed
    durations: Durations = Durations("constant", (0.0,))
    moves: MoveFaults = MoveFaults()
    move_durations: Durations | None = None  # of each phase; by default as for builds

    def __post_init__(self) -> None:
        shares = (self.reschedule, self.abort, self.hang)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(f"reschedule, abort and hang are shares of all attempts, not {shares}")

    def fate(self, build: str, attempt: int) -> Fate:
        """Return how a build attempt ends and after which time: the same at every run with the same seed."""
        seconds = self._seconds(build, attempt)
        certain = not (self.reschedule or self.abort or self.hang)
        if certain or (self.first_attempt_only and attempt > 1):
            return Fate("built", seconds)
        chance = draw(self.seed, "fate", build, attempt)
        if chance < self.reschedule + self.abort:
            kind, causes = ("reschedule", _RESCHEDULE) if chance < self.reschedule else ("abort", _ABORT)
            cause = causes[int(draw(self.seed, "cause", build, attempt) * len(causes))]
            return Fate(cast(Kind, kind), seconds, cause)
        return Fate("hang" if chance < self.reschedule + self.abort + self.hang else "built", seconds)

    def phase_fate(self, move: str, phase: str, attempt: int) -> Fate:
        """Return how a phase of a move ends and after which time."""
        seconds = self._seconds(move, f"{phase} {attempt}", self.move_durations)
        chance = draw(self.seed, "phase", move, phase, attempt)
        fails: float = getattr(self.moves, phase)
        if chance < fails:
            return Fate("failed", seconds, _PHASES[phase])
        return Fate("hang" if chance < fails + self.moves.hang else "done", seconds)

    def _seconds(self, of: str, attempt: int | str, times: Durations | None = None) -> float:
        times = times or self.durations
        if times.name == "constant":
            return times.values[0]
        second = draw(self.seed, "more time", of, attempt) if times.name == "lognormal" else 0.0
        return times.at(draw(self.seed, "time", of, attempt), second)


@dataclass(frozen=True, slots=True)
class CrashPlan:
    """Planned power failures of an agent: one after about every `orders` orders, each for `away` seconds."""

    seed: int = 0
    orders: int = 0  # 0: never
    away: float = 5.0

    def next_after(self, agent: str, crashes: int) -> int:
        """Return after how many more orders an agent loses power; 0: never. `crashes`: how often the agent
        has lost power so far.
        """
        if not self.orders:
            return 0
        return 1 + int(2 * self.orders * draw(self.seed, "crash", agent, crashes))


LEAST_ABSENCE = 5.0  # seconds: a busy machine may be slow


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The fault plan, the report intervals (in seconds) and other options of a simulated agent."""

    faults: FaultPlan = FaultPlan()
    crashes: CrashPlan = CrashPlan()
    period: float = 10.0  # in which each host is reported once
    announce_every: float = 300.0  # between complete checks of the inventory in placement
    progress_every: float = 2.0  # between reports of the progress of moves
    concurrency: int = 5000  # orders at a time
    version: str = ""  # of the agent, in its heartbeats
    probe_port: int = 0  # see compute_sim/agent.py
    probe_command: tuple[str, ...] = ()
    keeps_unknown_guests: bool = (
        False  # keep guests unknown to placement, stopped, as after a database restore
    )

    @property
    def absent_after(self) -> float:
        """Return after how many seconds of a stall an agent must assume that other hosts have its guests."""
        return max(self.period, LEAST_ABSENCE)
