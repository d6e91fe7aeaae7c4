"""Limits of attempts and waiting times."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """Limits for every build of a cell; durations in seconds."""

    max_attempts: int = 3
    build_timeout: float = 1800.0
    delete_timeout: float = 600.0  # after which a build is deleted without its agent's confirmation
    cleanup_timeout: float = 86400.0  # how long a silent agent's leftover holds its resources
