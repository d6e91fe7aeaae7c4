"""Compares the options of a Nova's scheduler with berth's filters, weighers and settings, without I/O."""

from collections.abc import Iterator

from control_room.kit import several
from features.nova.conf import NovaSchedulerConf
from features.nova.takeover.facts import ChoiceFacts, Level, TakeoverFacts, TakeoverFinding, named
from features.nova.takeover.placement_judgement import has_pci_in_placement
from scheduler_worker.extension import FILTER_BOOK, RULES_OF_PLACEMENT, WEIGHER_BOOK

ABOUT = "options of nova-scheduler"

# Filters that keep tenants or images apart: without them the separation ends with the switch.
_ISOLATING = {"aggregate_multi_tenancy_isolation", "aggregate_image_properties_isolation", "isolated_hosts"}
FALLBACK = "Run a nova-scheduler on a separate virtual host, and set nova_fallback_amqp_url to it."
_NO_EFFECT = {"all_hosts"}
_IO_OPS = ("IoOpsFilter", "AggregateIoOpsFilter")


def judged_options(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    """Yield findings about options of nova-scheduler that berth would not continue."""
    nova, berth = facts.bridge.scheduler, facts.bridge.choice
    if nova is None:
        means = (
            "Its filters, weighers and separation of tenants were not compared with berth's: they can end"
            " with the switch."
        )
        do = "Set nova_conf to the configuration file of nova-scheduler, or a copy of it."
        yield TakeoverFinding("warning", ABOUT, "nova_conf is not set.", means, do)
        return
    yield from _filters(nova, berth)
    yield from _of_devices(nova, facts)
    yield from _weighers(nova, berth)
    yield from _separation(nova, berth)
    yield from _image_traits(nova, berth)
    if nova.subset != berth.subset:
        says = f"host_subset_size is {nova.subset}, and berth's is {berth.subset}."
        means = (
            "Nova draws among so many best hosts against collisions, which berth's schedulers do not have."
        )
        yield TakeoverFinding(
            "note", ABOUT, says, means, f"host_subset_size = {nova.subset} keeps the spread."
        )
    if nova.discovery >= 0:
        says = (
            f"discover_hosts_in_cells_interval is {nova.discovery}: nova-scheduler maps new hosts to cells."
        )
        means = "Without nova-scheduler nothing does, and new hosts get no instances."
        do = "Run it periodically, for example by cron: nova-manage cell_v2 discover_hosts"
        yield TakeoverFinding("warning", ABOUT, says, means, do)


def _filters(nova: NovaSchedulerConf, berth: ChoiceFacts) -> Iterator[TakeoverFinding]:
    unknown = [
        name for name in nova.filters if name not in FILTER_BOOK.called and name not in RULES_OF_PLACEMENT
    ]
    if unknown:
        count = several(len(unknown), "filter")
        says = f"{count} in enabled_filters that berth does not have: {named(unknown)}."
        means = "Hosts that they exclude get instances after the switch."
        do = "Write them as filters of berth (docs/howto/filter.md), and add them to scheduler_filters."
        yield TakeoverFinding("error", ABOUT, says, means, do)
    lacking = {
        name: [rule for rule in FILTER_BOOK.called.get(name, ()) if rule not in {*berth.filters, *_NO_EFFECT}]
        for name in nova.filters
    }
    for is_isolating in (True, False):
        names = [name for name, rules in lacking.items() if rules and _isolates(rules) is is_isolating]
        if names:
            rules = list(dict.fromkeys(rule for name in names for rule in lacking[name]))
            says = (
                f"{several(len(names), 'filter')} of enabled_filters that berth does not use: {named(names)}."
            )
            means = "Hosts that they exclude get instances after the switch."
            if is_isolating:
                means = "The separation of tenants or images ends with the switch, without a message."
            do = f"Set scheduler_filters = {', '.join([*berth.filters, *rules])}"
            yield TakeoverFinding("error" if is_isolating else "warning", ABOUT, says, means, do)
    limits = [name for name in nova.filters if name in _IO_OPS]
    if limits and not berth.limits_io_ops:
        says = f"{named(limits)} limits the builds at once on a host."
        means = "berth's filter io_ops does not limit instances that Nova creates."
        do = "Set scheduler_rules.io_ops.for_nova = true, and max_io_ops_per_host as in Nova."
        yield TakeoverFinding("warning", ABOUT, says, means, do)


def _of_devices(nova: NovaSchedulerConf, facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    """Yield the findings about filters of Nova that read what only compute nodes of Nova have."""
    has_fallback = facts.bridge.has_fallback
    level: Level = "note" if has_fallback else "warning"
    otherwise = "are forwarded to nova_fallback_amqp_url" if has_fallback else "fail with NoValidHost"
    if "NUMATopologyFilter" in nova.filters:
        says = "NUMATopologyFilter is in enabled_filters, and berth does not know NUMA cells of Nova's hosts."
        means = f"Requests with a NUMA topology, pinned CPUs, page size or persistent memory {otherwise}."
        yield TakeoverFinding(level, ABOUT, says, means, "" if has_fallback else FALLBACK)
    if "PciPassthroughFilter" in nova.filters:
        says = "PciPassthroughFilter is in enabled_filters."
        means = f"Requests with PCI devices or SR-IOV ports {otherwise}: Placement does not have the devices."
        if has_pci_in_placement(facts):
            means = (
                "In its place berth reads the devices in Placement, for flavors with an alias. Requests with"
                f" SR-IOV ports {otherwise}."
            )
        yield TakeoverFinding(level, ABOUT, says, means, "" if has_fallback else FALLBACK)


def _isolates(rules: list[str]) -> bool:
    return not _ISOLATING.isdisjoint(rules)


def _weighers(nova: NovaSchedulerConf, berth: ChoiceFacts) -> Iterator[TakeoverFinding]:
    used = {weigher for name in nova.weighers for weigher in WEIGHER_BOOK.called.get(name, ())}
    unknown = [name for name in nova.weighers if name not in (*WEIGHER_BOOK.called, "CrossCellWeigher")]
    if unknown:
        says = f"{several(len(unknown), 'weigher')} that berth does not have: {named(unknown)}."
        do = "Write them as weighers of berth (docs/howto/filter.md), and add them to scheduler_weighers."
        yield TakeoverFinding("warning", ABOUT, says, "Hosts are ordered without them.", do)
    if nova.weighers and (others := sorted(_of_nova() & {n for n, m in berth.weighers.items() if m} - used)):
        says = f"weight_classes leaves out weighers that berth uses: {named(others)}."
        do = f"Set the multipliers of {named(others)} in scheduler_weighers to 0."
        yield TakeoverFinding("warning", ABOUT, says, "Hosts are ordered otherwise.", do)
    for option, (weigher, multiplier) in nova.multipliers.items():
        if (nova.weighers and weigher not in used) or berth.weighers.get(weigher, 0.0) == multiplier:
            continue
        ours = berth.weighers.get(weigher, 0.0)
        says = f"{option} is {multiplier:g}, and the multiplier of berth's weigher {weigher} is {ours:g}."
        means = "Hosts are ordered otherwise" + (
            ": instances are spread instead of packed, or packed instead of spread."
            if multiplier * ours < 0
            else "."
        )
        do = f"Set scheduler_weighers with all weighers, and {weigher} = {multiplier:g}."
        yield TakeoverFinding("warning", ABOUT, says, means, do)


def _of_nova() -> set[str]:
    return {weigher for names in WEIGHER_BOOK.called.values() for weigher in names}


def _separation(nova: NovaSchedulerConf, berth: ChoiceFacts) -> Iterator[TakeoverFinding]:
    is_required = nova.tenant_aggregates and nova.tenant_aggregates_required
    needed = "required" if is_required else "optional"
    level: Level = "error"
    if nova.tenant_aggregates and berth.tenant_aggregates not in (needed, "required"):
        options = "limit_tenants_to_placement_aggregate" + (
            " and placement_aggregate_required_for_tenants are" if is_required else " is"
        )
        says = f"{options} on, and tenant_aggregates is {berth.tenant_aggregates}."
        means = "Projects are placed outside of their aggregates, or in those of other projects."
        yield TakeoverFinding(level, ABOUT, says, means, f"Set tenant_aggregates = {needed}.")
    if nova.isolate_aggregates and not berth.isolate_aggregates:
        says = "enable_isolated_aggregate_filtering is on, and isolate_aggregates is off."
        means = "Aggregates that are reserved for a trait accept every instance."
        yield TakeoverFinding(level, ABOUT, says, means, "Set isolate_aggregates = true.")


def _image_traits(nova: NovaSchedulerConf, berth: ChoiceFacts) -> Iterator[TakeoverFinding]:
    for is_on, option, kind in (
        (nova.image_types, "query_placement_for_image_type_support", "type"),
        (nova.image_metadata, "image_metadata_prefilter", "metadata"),
    ):
        if is_on and kind not in berth.image_traits:
            says = f"{option} is on, and image_traits does not have {kind}."
            means = "Instances can get hosts that do not support their image, where their builds fail."
            do = f"Set image_traits = {', '.join([*berth.image_traits, kind])}."
            yield TakeoverFinding("warning", ABOUT, says, means, do)
