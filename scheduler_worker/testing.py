"""All that tests and benchmarks of features import of the scheduler, in addition to
`scheduler_worker.extension` and `scheduler_worker.core.extension`.

A builder of tests/support is shorter than these, wherever there is one: `tests.support.schedulers`,
`tests.support.ranking_builders`, `tests.support.rule_builders`.
"""

from scheduler_worker.composition import plain_scheduler
from scheduler_worker.core.demand import DemandCounts
from scheduler_worker.core.fitting import ALL_WAYS, WAYS_OF_THE_BEST, best_first
from scheduler_worker.core.order import BUILD, choices_of
from scheduler_worker.core.policy import default_profile
from scheduler_worker.core.request import RequestOptions, alternatives_of
from scheduler_worker.core.step import PATIENCE, step
from scheduler_worker.placing.scheduler import Scheduler

__all__ = [
    "ALL_WAYS",  # as many ways to fit a host as there are
    "BUILD",  # the purpose of orders that start instances
    "PATIENCE",  # how long an order is tried again
    "WAYS_OF_THE_BEST",  # how many ways to fit a host a claim names
    "DemandCounts",  # the shapes of recent requests
    "RequestOptions",  # how requests are read
    "Scheduler",  # the scheduler of a worker
    "alternatives_of",  # the alternatives of a request, in the order in which they are tried
    "best_first",  # the ways to fit a host, the best first
    "choices_of",  # what a claim names for the ways to fit a host
    "default_profile",  # the name of the profile that is used without a setting
    "plain_scheduler",  # a scheduler without a worker, with the given parts
    "step",  # advances an order by an event
]
