"""Reads the state of Nova, Placement and its queue for `berth openstack check`; changes nothing."""

from berth.kit import (
    PlacementClient,
    PlacementContents,
    Rejected,
    Settings,
    choice_policy,
    each_in_parallel,
    rule_options,
    settings_by_name,
    single_errors,
)
from bus.clock import Clock
from bus.errors import Unavailable
from features.nova.conf import nova_options, nova_scheduler_options
from features.nova.core.facts import NovaFacts
from features.nova.inspection import NovaInspection
from features.nova.oslo.topic import observe
from features.nova.processes import inspection, scheduler_address
from features.nova.settings import NovaSettings
from features.nova.takeover.facts import BridgeFacts, ChoiceFacts, Step, TakeoverFacts
from features.nova.takeover.placement_judgement import doubled, orphans, unallocated

CONFIRMED = 2000  # differing records to read again; requests in progress do not explain more


async def observed(
    settings: Settings, placement: PlacementClient, *, step: Step | None = None, is_done: bool = False
) -> TakeoverFacts:
    """Read the data for `berth openstack check`: Nova's databases, Placement's contents, the scheduler's
    queue. `step`: the step of the take-over to check; `is_done`: the operator has already taken this step.
    """
    nova_settings = settings.of(NovaSettings)
    queue = None
    if nova_settings.amqp_url and step in (None, "scheduler"):
        queue = await observe(scheduler_address(settings), name="berth openstack check")
    nova, reader = NovaFacts(), None
    if nova_settings.database_url:
        reader = inspection(settings, Clock())
        nova = await reader.read()
    problem, contents = "", None
    try:
        async with placement:
            contents = await placement.world()
            if reader is not None and nova.is_complete:
                await _confirm(nova, reader, contents, placement)
    except* (Unavailable, Rejected) as several:
        problem = str(next(iter(single_errors(several))))
    return TakeoverFacts(
        step=step,
        is_done=is_done,
        bridge=_bridge(settings),
        nova=nova,
        place=placement.place,
        placement=contents,
        placement_problem=problem,
        queue=queue,
    )


def _bridge(settings: Settings) -> BridgeFacts:
    """Return the settings of berth that the check judges, and the options of nova-scheduler."""
    nova, choice = settings.of(NovaSettings), choice_policy(settings)
    return BridgeFacts(
        has_database=bool(nova.database_url),
        has_amqp=bool(nova.amqp_url),
        has_fallback=bool(nova.fallback_amqp_url),
        wait=nova.wait,
        long_rpc_timeout=nova_options(settings).long_rpc_timeout,
        auth=settings.placement.auth,
        choice=ChoiceFacts(
            filters=tuple(rule.name for rule in choice.rules),
            weighers={weigher.name: weigher.multiplier for weigher in choice.weighers},
            subset=choice.subset,
            limits_io_ops=bool(rule_options(settings).get("io_ops", {}).get("for_nova")),
            tenant_aggregates=settings.requests.tenant_aggregates,
            isolate_aggregates=settings.requests.isolate_aggregates,
            image_traits=settings_by_name(settings).get("image_traits", ()),  # of a feature
        ),
        scheduler=nova_scheduler_options(settings) if settings.ironic.connection.nova_conf else None,
    )


async def _confirm(
    nova: NovaFacts, reader: NovaInspection, contents: PlacementContents, placement: PlacementClient
) -> None:
    """Read again the instances and consumers with different records in Nova and Placement, and replace them
    in `nova` and `contents`.

    A build or move may have changed a record after the read of Nova and before the read of Placement. If more
    than CONFIRMED records differ, nothing is read again.
    """
    suspects = [*orphans(nova, contents), *unallocated(nova, contents), *doubled(nova, contents)]
    if not 0 < len(suspects) <= CONFIRMED:
        return

    async def read(id_: str) -> None:
        contents.consumers.pop(id_, None)
        if (consumer := await placement.consumer(id_)) is not None:
            contents.consumers[id_] = consumer

    await each_in_parallel(suspects, read)
    now = await reader.read_again(suspects)
    for id_ in suspects:
        nova.instances.pop(id_, None)
    nova.instances |= now
