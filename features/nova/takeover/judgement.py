"""Finds problems in the state of a Nova, berth's settings and the scheduler's queue, without I/O."""

from collections import Counter
from collections.abc import Iterator

from control_room.kit import several
from features.nova.core.unjudged_properties import unjudged_by_flavor, unjudged_by_image
from features.nova.takeover.facts import LEVELS, Level, TakeoverFacts, TakeoverFinding, named
from features.nova.takeover.options_judgement import FALLBACK, judged_options
from features.nova.takeover.placement_judgement import has_pci_in_placement, judged_placement

CLOCK_SECONDS, CLOCK_BROKEN = 1.0, 30.0  # clock differences for a warning, an error: services then seem down
OLDEST = 66  # version of compute services: Nova 2023.1

_READER = "GRANT SELECT ON <database>.* TO <user>"
_FORWARDED = "Their requests are forwarded to the nova-scheduler at nova_fallback_amqp_url."
_LISTED = (
    "openstack image list --property hw_cpu_policy=dedicated (and the others in features/nova/README.md)"
)


def judged(facts: TakeoverFacts) -> list[TakeoverFinding]:
    """Return the findings of `berth openstack check` for the step that the operator names, errors first."""
    found = [*_databases(facts), *_settings(facts), *judged_placement(facts)]
    if facts.is_checking("scheduler"):
        found += judged_options(facts)
        found += [*_mappings(facts), *_versions(facts), *_flavors(facts), *_images(facts)]
        found += [*_schedulers(facts), *_queue(facts)]
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def _databases(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    for database in facts.nova.databases:
        about = f"database of {database.name}"
        if not database.is_needed:
            if database.problem:
                says = f"It cannot be read: {database.problem}."
                yield TakeoverFinding("note", about, says, "It has no hosts: berth does not need it.")
            continue
        setting = f"nova_cell_database_urls.{database.name}"
        if database.name == "the API":
            setting = "nova_database_url"
        if database.is_template:
            means = "berth does not have the variables of Nova's configuration and cannot read this cell."
            do = f"Set {setting} to the URL without variables."
            yield TakeoverFinding("error", about, "Its URL in cell_mappings is a template.", means, do)
        elif database.problem:
            means = "Hosts and instances in it are unknown: they cannot be checked, and get no instances."
            do = f"Set {setting} to a URL that berth can reach, and allow the user to read: {_READER}"
            yield TakeoverFinding("error", about, f"It cannot be read: {database.problem}.", means, do)
        elif database.can_write:
            means = "berth only reads, but a user who reads its settings can change Nova's data."
            do = f"Set {setting} to a user who may only read: {_READER}"
            yield TakeoverFinding("warning", about, "berth's user may write.", means, do)
        if abs(database.ahead) > CLOCK_SECONDS:
            level: Level = "error" if abs(database.ahead) > CLOCK_BROKEN else "warning"
            side = "ahead of" if database.ahead > 0 else "behind"
            says = f"Its clock is {abs(database.ahead):.1f} s {side} this machine's."
            means = "Compute services are judged by the time of their last report: hosts can look down."
            yield TakeoverFinding(level, about, says, means, "Start a time service: chronyc tracking")


def _settings(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    bridge = facts.bridge
    if not bridge.has_database:
        means = "Nothing of Nova can be read, so only Placement was checked."
        do = "Set nova_database_url to the [api_database]connection of Nova, with a user who may only read."
        yield TakeoverFinding("error", "settings", "nova_database_url is not set.", means, do)
    if facts.is_checking("placement", "scheduler") and bridge.auth != "keystone":
        means = "Nova authenticates with tokens of Keystone, which berth would refuse."
        says = f"placement_auth is {bridge.auth}."
        yield TakeoverFinding("warning", "settings", says, means, "Set placement_auth = keystone.")
    if not facts.is_checking("scheduler"):
        return
    if not bridge.has_amqp:
        means = "The bridge cannot start: it does not know where Nova calls its scheduler."
        do = "Set nova_amqp_url to the transport_url of nova-conductor, as amqp://"
        yield TakeoverFinding("error", "settings", "nova_amqp_url is not set.", means, do)
    if bridge.wait >= bridge.long_rpc_timeout:
        says = f"nova_wait is {bridge.wait:g} s, Nova's long_rpc_timeout {bridge.long_rpc_timeout} s."
        means = "Nova gives up before berth does, and the instance ends in ERROR with MessagingTimeout."
        yield TakeoverFinding(
            "warning", "settings", says, means, "Set nova_wait to less than long_rpc_timeout."
        )


def _mappings(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    unmapped = sorted({node.host for node in facts.nova.nodes if node.mapped_to is None})
    if unmapped:
        says = f"{several(len(unmapped), 'compute host')} mapped to no cell: {named(unmapped)}."
        means = "They get no instances, as with nova-scheduler."
        do = "nova-manage cell_v2 discover_hosts --verbose"
        yield TakeoverFinding("error", "cell mappings", says, means, do)
    elsewhere = sorted({
        node.host for node in facts.nova.nodes if node.mapped_to is not None and node.mapped_to != node.cell
    })  # fmt: skip
    if elsewhere:
        says = f"{several(len(elsewhere), 'compute host')} mapped to another cell: {named(elsewhere)}."
        means = "They get no instances: their compute nodes are in the database of another cell."
        do = (
            "nova-manage cell_v2 delete_host --cell_uuid CELL --host HOST; nova-manage cell_v2 discover_hosts"
        )
        yield TakeoverFinding("error", "cell mappings", says, means, do)


def _versions(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    computes = [service for service in facts.nova.services if service.binary == "nova-compute"]
    old = sorted(service.host for service in computes if service.version < OLDEST)
    if old:
        says = (
            f"{several(len(old), 'compute service')} older than Nova 2023.1 (version {OLDEST}): {named(old)}."
        )
        means = "berth was not tried with them."
        yield TakeoverFinding("warning", "compute services", says, means, "Upgrade nova-compute first.")
    versions = Counter(service.version for service in computes)
    if len(versions) > 1:
        listed = ", ".join(f"{count:,} of version {version}" for version, count in sorted(versions.items()))
        means = (
            "A rolling upgrade is in progress. Requirements of newer versions count when all hosts have them."
        )
        yield TakeoverFinding("note", "compute services", f"There are several versions: {listed}.", means)
    away = sorted(service.host for service in computes if not service.is_up or service.is_disabled)
    if away:
        says = f"{several(len(away), 'compute service')} down or disabled: {named(away)}."
        do = "openstack compute service list --service nova-compute"
        yield TakeoverFinding("note", "compute services", says, "They get no instances.", do)


def _flavors(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    has_pci = has_pci_in_placement(facts)
    used = Counter(instance.flavor for instance in facts.nova.instances.values())
    by_reason: dict[str, list[int]] = {}
    for id_, flavor in facts.nova.flavors.items():
        if why := unjudged_by_flavor(flavor.extra_specs, has_pci=has_pci):
            by_reason.setdefault(why, []).append(id_)
    for why, ids in by_reason.items():
        names = sorted(facts.nova.flavors[id_].name for id_ in ids)
        instances = sum(used[id_] for id_ in ids)
        says = (
            f"{several(len(ids), 'flavor')} with {several(instances, 'instance')} cannot be judged because of"
            f" {why}: {named(names)}."
        )
        means = "Boots and moves with them fail with NoValidHost after the switch."
        yield _unjudged(facts, "error" if instances else "warning", "flavors", says, means)


def _images(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    """Yield the findings about images of instances whose flavors can be judged."""
    has_pci = has_pci_in_placement(facts)
    flavors, by_reason = facts.nova.flavors, dict[str, list[str]]()
    for id_, instance in facts.nova.instances.items():
        flavor = flavors.get(instance.flavor)
        if flavor is not None and unjudged_by_flavor(flavor.extra_specs, has_pci=has_pci):
            continue
        if why := unjudged_by_image(facts.nova.image_properties.get(id_, {})):
            by_reason.setdefault(why, []).append(id_)
    for why, ids in by_reason.items():
        says = (
            f"The images of {several(len(ids), 'instance')} cannot be judged because of {why}:"
            f" {named(sorted(ids))}."
        )
        means = "Boots from them, and moves of these instances, fail with NoValidHost after the switch."
        yield _unjudged(facts, "error", "images", says, means)
    if not facts.bridge.has_fallback:
        says = "Only images of existing instances were judged: Nova's databases do not have the others."
        means = "Boots from an image with a NUMA topology fail with NoValidHost after the switch."
        yield TakeoverFinding("note", "images", says, means, _LISTED)


def _unjudged(facts: TakeoverFacts, level: Level, about: str, says: str, means: str) -> TakeoverFinding:
    """Return the finding about requests that berth cannot judge: only a note if they are forwarded."""
    if facts.bridge.has_fallback:
        return TakeoverFinding("note", about, says, _FORWARDED)
    return TakeoverFinding(level, about, says, means, FALLBACK)


def _schedulers(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    running = sorted({
        service.host
        for service in facts.nova.services
        if service.binary == "nova-scheduler" and service.is_up and not service.is_disabled
    })  # fmt: skip
    about, stop = "nova-scheduler", "systemctl disable --now nova-scheduler"
    if running and facts.is_done:
        says = f"{several(len(running), 'nova-scheduler')} up: {named(running)}."
        means = "Each call is answered by berth or by a scheduler of Nova with other filters."
        do = f"{stop} (a stopped one counts as up for Nova's service_down_time)"
        yield TakeoverFinding("warning", about, says, means, do)
    elif running:
        says = f"{several(len(running), 'nova-scheduler')} up: {named(running)}."
        means = "Calls are shared with berth until they are stopped. Start berth's bridge first."
        yield TakeoverFinding("note", about, says, means, f"After `berth run nova` serves: {stop}")
    elif not facts.is_done and not any(database.problem for database in facts.nova.databases):
        means = "Either berth has taken over, or no request is scheduled at present."
        yield TakeoverFinding("note", about, "No nova-scheduler is up.", means)


def _queue(facts: TakeoverFacts) -> Iterator[TakeoverFinding]:
    queue, about = facts.queue, "queue scheduler at nova_amqp_url"
    if queue is None:
        return
    if queue.problem:
        do = "Check nova_amqp_url and the permissions: rabbitmqctl list_permissions --vhost VHOST"
        yield TakeoverFinding("error", about, f"{queue.problem}.", "berth cannot receive Nova's calls.", do)
        return
    if not queue.exists:
        means = "No nova-scheduler has consumed there. If the virtual host is wrong, berth gets no calls."
        do = "Compare nova_amqp_url with the transport_url of nova-conductor (of the superconductor)."
        level: Level = "error" if facts.is_done else "warning"
        yield TakeoverFinding(level, about, "It does not exist.", means, do)
        return
    consumers = (
        f"{several(queue.ours, 'consumer')} of berth's bridge, {queue.consumers - queue.ours} of"
        f" nova-scheduler and {several(queue.messages, 'waiting call')}."
    )
    if not queue.consumers:
        means = "Boots and moves wait until Nova gives up."
        do = "berth run nova (or systemctl start nova-scheduler)"
        yield TakeoverFinding("error", about, f"It has {consumers}", means, do)
    elif facts.is_done and not queue.ours:
        means = (
            "nova-scheduler answers all calls. If it is stopped, boots and moves wait until Nova gives up."
        )
        yield TakeoverFinding("error", about, f"It has {consumers}", means, "berth run nova")
    else:
        means = "Stop the last of one kind only when this check counts a consumer of the other."
        yield TakeoverFinding("note", about, f"It has {consumers}", means)
    if queue.mismatch:
        says = f"It was declared with other arguments than the settings have: {queue.mismatch}."
        means = "It is used as it is. If it is deleted, nova-scheduler and berth could not declare it alike."
        do = (
            "Set nova_conf to Nova's configuration file: berth follows amqp_durable_queues and"
            " rabbit_quorum_queue in it (features/nova/README.md)."
        )
        yield TakeoverFinding("warning", about, says, means, do)
