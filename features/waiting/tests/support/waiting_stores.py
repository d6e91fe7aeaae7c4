"""Stores of waiting requests for schedulers of tests."""

from bus.sql.database import Database
from bus.worker import Worker
from features.waiting.held_hosts import HeldHosts
from features.waiting.owned_rows import OwnedRows
from features.waiting.placing import WaitingBuilds
from features.waiting.queue import WaitingQueue
from features.waiting.store import WaitingStore
from scheduler_worker.extension import Orders, SchedulerOptions
from scheduler_worker.testing import Scheduler


def waiting_store_of(scheduler: Scheduler) -> WaitingStore:
    """Return an empty store of waiting requests for a scheduler."""
    options = SchedulerOptions(policy=scheduler.policy)
    orders = Orders(scheduler.source, options.requests, options.policy)
    held = HeldHosts(scheduler.hosts, orders, options)
    rows = OwnedRows(Database("sqlite+aiosqlite://"), scheduler.hosts.roster.name, held.holds)
    return WaitingStore(scheduler, held, rows, lambda: None)


def waiting_builds_of(worker: Worker) -> WaitingBuilds:
    """Return the evaluator of waiting builds, which knows the scheduler and its waiting requests."""
    whose = (getattr(run, "__self__", None) for run in worker.runs)
    return next(one for one in whose if isinstance(one, WaitingQueue)).builds
