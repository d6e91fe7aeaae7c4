"""Imports what workers need, in the process from which `forked_workers` forks them."""

import gc
from importlib import import_module

for _module in (
    "berth.__main__",
    "berth.commands.run",
    "berth.kit.choice_policies",
    "berth.ironic",
    "berth.simulated_agents",
    "bus.rabbit",
    "bus.sql.migrations",
    "cell_conductor",
    "compute_sim.worker",
    "placement_worker",
    "scheduler_worker.worker",
    "sqlalchemy.dialects.postgresql.asyncpg",
):
    import_module(_module)
gc.collect()
gc.freeze()  # a collection writes to each object, and written memory is not shared
