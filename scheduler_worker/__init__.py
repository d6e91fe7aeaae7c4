"""The scheduler: build requests → candidates → filters → weighers → claim → selection and alternates."""

from scheduler_worker.core.choose import Policy
from scheduler_worker.worker import scheduler_worker

__all__ = ["Policy", "scheduler_worker"]
