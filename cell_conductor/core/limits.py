"""How often a build may be tried, and for how long anybody is waited for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Of every build of a cell; all durations in seconds."""

    max_attempts: int = 3
    build_timeout: float = 1800.0
    delete_timeout: float = 600.0  # after which a build is deleted, whatever its agent has to say
    cleanup_timeout: float = 86400.0  # for how long the room of a guest is kept whose agent says nothing
