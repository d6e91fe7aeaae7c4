"""The scheduler: build requests → candidates → filters → weighers → claim → selection and alternates."""

from scheduler_worker.core.former_policy import FormerPolicy as ChoicePolicy
from scheduler_worker.worker import scheduler_worker

__all__ = ["ChoicePolicy", "scheduler_worker"]
