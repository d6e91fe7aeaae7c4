"""Prints the hosts that nova-scheduler's own code finds feasible for random RequestSpecs, as JSON lines.

It runs in the environment of `make nova-test`; test_same_hosts.py starts it:

    .venv-nova/bin/python features/nova/tests/real/nova_start.py CONFIGURATION SEED NUMBER CELL=DATABASE…

First it writes a cloud (nova_cloud.py) and prints the roots without disks and the instances that
are being moved. After a line on standard input it prints a line for each request: half of them with Nova's
default filters, half with all filters.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from typing import Any

import nova.conf
import sqlalchemy
from nova import config, context, exception, objects, rpc
from nova.db.api import models as api_models
from nova.db.main import models as cell_models
from nova.notifications.objects.request_spec import RequestSpecPayload
from nova.scheduler import manager
from oslo_messaging import ExpectedException

from features.nova.tests.real.nova_cloud import make_cloud
from features.nova.tests.real.random_specs import SpecMaker

CONF = nova.conf.CONF

PREFILTERS = (  # options of [scheduler] that the settings of test_same_hosts.py correspond to
    "limit_tenants_to_placement_aggregate",
    "enable_isolated_aggregate_filtering",
    "query_placement_for_image_type_support",
    "image_metadata_prefilter",
)
ALL_FILTERS = [
    "AllHostsFilter", "ComputeFilter", "ComputeCapabilitiesFilter", "ImagePropertiesFilter",
    "ServerGroupAntiAffinityFilter", "ServerGroupAffinityFilter", "SameHostFilter", "DifferentHostFilter",
    "SimpleCIDRAffinityFilter", "AggregateMultiTenancyIsolation", "AggregateInstanceExtraSpecsFilter",
    "AggregateImagePropertiesIsolation", "AggregateTypeAffinityFilter", "AggregateIoOpsFilter",
    "AggregateNumInstancesFilter", "JsonFilter", "MetricsFilter", "IsolatedHostsFilter",
]  # fmt: skip


class RecordingManager(manager.SchedulerManager):  # type: ignore[misc]  # not installed for mypy
    """Nova's scheduler up to the list of filtered hosts; nothing is claimed."""

    feasible: list[Any]

    def _get_sorted_hosts(self, spec_obj: Any, host_states: Any, index: int) -> list[Any]:
        hosts = self.host_manager.get_filtered_hosts(host_states, spec_obj, index)
        is_rebuild = "_nova_check_type" in (spec_obj.scheduler_hints or {})
        self.feasible = [host for host in hosts if host.allocation_candidates or is_rebuild]
        return []


def feasible(scheduler: RecordingManager, spec: Any) -> dict[str, Any]:
    """Return the roots of the feasible hosts, and the error if Nova's code failed."""
    scheduler.feasible, error = [], ""
    try:
        scheduler.select_destinations(
            context.get_admin_context(), spec_obj=spec, instance_uuids=[spec.instance_uuid],
            return_objects=True,
        )  # fmt: skip
    except ExpectedException as ended:
        if not isinstance(ended.exc_info[1], exception.NoValidHost):
            error = repr(ended.exc_info[1])
    except Exception as problem:  # a defect of Nova is a result, too
        error = repr(problem)
    return {"hosts": sorted(host.uuid for host in scheduler.feasible), "error": error}


def a_scheduler(*, has_all: bool) -> RecordingManager:
    group = "filter_scheduler"
    if has_all:
        CONF.set_override("enabled_filters", ALL_FILTERS, group)
        for option in PREFILTERS:
            CONF.set_override(option, True, "scheduler")
    return RecordingManager()


def make_tables(cell_databases: Mapping[str, str]) -> None:
    """Make the tables of Nova's databases from its models, which is faster than its migrations."""
    for url, models in (
        (CONF.api_database.connection, api_models),
        *((url, cell_models) for url in cell_databases.values()),
    ):
        engine = sqlalchemy.create_engine(url)
        models.BASE.metadata.create_all(engine)
        engine.dispose()


def main() -> None:
    configuration, seed, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cell_databases = dict(argument.split("=", 1) for argument in sys.argv[4:])
    objects.register_all()
    config.parse_args(["nova-scheduler", "--config-file", configuration])
    rpc.init(CONF)
    make_tables(cell_databases)
    chance = random.Random(seed)
    cloud = make_cloud(chance, cell_databases)
    shared = [host.uuid for host in cloud.hosts if host.has_shared_disk]
    print(json.dumps({"shared_disks": shared, "moving": sorted(cloud.migrating)}), flush=True)
    sys.stdin.readline()
    maker = SpecMaker(chance, cloud)
    serializer = objects.base.NovaObjectSerializer()
    for has_all in (False, True):
        scheduler = a_scheduler(has_all=has_all)
        for _ in range(number // 2):
            spec = maker.make()
            primitive = serializer.serialize_entity(context.get_admin_context(), spec)
            payload = RequestSpecPayload(spec).obj_to_primitive()
            line = {"all": has_all, "spec": primitive, "payload": payload, **feasible(scheduler, spec)}
            print(json.dumps(line, default=str), flush=True)
