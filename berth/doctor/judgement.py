"""Converts the observed state of a running berth to findings with advice, without I/O: the list of problems,
and checks of the installation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from berth.doctor.left_queues import left_queues
from berth.doctor.seen import BerthSeen, BrokerSeen, DatabaseSeen, IronicSeen, ManagementSeen
from berth.kit.findings import Finding, Level
from bus.sql.migrations import FOREIGN_REMEDY, describe_foreign

T = TypeVar("T")

PYTHON = (3, 11)
RABBITMQ = (3, 10)
POSTGRESQL = (13,)

CLOCK_SECONDS = 1.0  # permitted difference from this machine's clock: workers compare each other's times
CLOCK_BROKEN = 30.0
MEMBERS = 3  # members that a quorum queue needs if the cluster has at least so many nodes
SHOWN = 5  # queues listed by name
DISK_SHARE, DISK_BROKEN = 0.1, 0.02  # free share of a disk: a lower share is a warning, an error


def judged(
    seen: BerthSeen, revision: Callable[[DatabaseSeen], Iterable[Finding]] | None = None
) -> list[Finding]:
    """Return the findings about an observed berth, the most severe first. `revision` judges the migrations of
    a database that can be reached; by default all must be applied.
    """
    found = [*_machine(seen), *_each(_broker, seen.brokers), *_each(_database, seen.databases)]
    reached = [database for database in seen.databases if not database.problem]
    found += _each(revision or _revision, reached)
    if seen.bus:
        found.append(
            Finding("broken", "bus", seen.bus, "Start it (`berth up`), or give its address in the settings.")
        )
    found += [*_problems(seen), *_never_started(seen), *left_queues(seen)]
    if seen.authentication is not None:
        found.append(seen.authentication)
    found += _ironic(seen.ironic)
    return sorted_findings(found)


def sorted_findings(found: Iterable[Finding]) -> list[Finding]:
    """Return findings with the most severe first."""
    order: Sequence[Level] = ("broken", "warning", "fine")
    return sorted(found, key=lambda finding: order.index(finding.level))


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code of `berth doctor`: 0 if all is fine, 1 with warnings, 2 with broken parts."""
    levels = {finding.level for finding in findings}
    return 2 if "broken" in levels else 1 if "warning" in levels else 0


def _each(judge: Callable[[T], Iterable[Finding]], many: Iterable[T]) -> list[Finding]:
    return [finding for t in many for finding in judge(t)]


def _machine(seen: BerthSeen) -> Iterator[Finding]:
    version = ".".join(map(str, seen.python))
    if seen.python < PYTHON:
        yield Finding("broken", "Python", f"Python is {version}.", f"Use {_dotted(PYTHON)} or newer.")
    else:
        yield Finding("fine", "Python", f"Python is {version}.")
    if seen.disk is not None and seen.disk < DISK_SHARE:
        level: Level = "broken" if seen.disk < DISK_BROKEN else "warning"
        sentence = f"Of the disk of {seen.state_dir} {seen.disk:.0%} are free."
        yield Finding(level, "disk", sentence, "Free disk space: a process that cannot write stops.")


def _broker(seen: BrokerSeen) -> Iterator[Finding]:
    about = f"RabbitMQ {seen.place}"
    if seen.problem:
        do = "See that it runs (`rabbitmq-diagnostics status`) and that URL, user and password are right."
        yield Finding("broken", about, _sentence(seen.problem), do)
        yield from _alarms(about, seen)
        yield from _nodes(about, seen.management)
        return
    if _older(seen.version, RABBITMQ):
        do = f"Use {_dotted(RABBITMQ)} or newer: nothing older was tried."
        yield Finding("warning", about, f"It is version {seen.version}.", do)
    else:
        yield Finding("fine", about, f"It lets us in, and is version {seen.version}.")
    for refusal in seen.refused:
        do = "Set its permissions: `berth cell permissions CELL` prints those of a cell's user."
        yield Finding("broken", about, _sentence(refusal), do)
    yield from _alarms(about, seen)
    if seen.stuck and not seen.alarm and not seen.management.alarms:
        do = "Check for an alarm of disk or memory (`rabbitmq-diagnostics alarms`), or half a cluster."
        yield Finding("broken", about, "It took no message within 5 seconds.", do)
    if seen.fresh:
        yield Finding("warning", about, "Nothing of berth's is there yet.", "Start the workers: `berth up`.")
    yield from _features(about, seen.management)
    yield from _nodes(about, seen.management)
    yield from _clock(about, seen.management.clock)


def _alarms(about: str, seen: BrokerSeen) -> Iterator[Finding]:
    reported = tuple(f"too little {alarm}" for alarm in seen.management.alarms)
    for alarm in reported or ((seen.alarm,) if seen.alarm else ()):
        do = "Make room there: until then it takes no messages, and everybody waits."
        yield Finding("broken", about, f"It has an alarm: {alarm}.", do)


def _features(about: str, cluster: ManagementSeen) -> Iterator[Finding]:
    if cluster.disabled:
        sentence = f"Feature flags that are not enabled: {', '.join(cluster.disabled)}."
        do = "Enable them (`rabbitmqctl enable_feature_flag all`): newer versions of RabbitMQ require them."
        yield Finding("warning", about, sentence, do)
    if cluster.deprecated:
        sentence = f"Deprecated features in use: {', '.join(cluster.deprecated)}."
        do = (
            "Find their user before RabbitMQ is upgraded: newer versions refuse them."
            " Of berth, only the queue for a Nova without `amqp_durable_queues` is one."
        )
        yield Finding("warning", about, sentence, do)


def _nodes(about: str, cluster: ManagementSeen) -> Iterator[Finding]:
    if down := [node for node, is_running in cluster.nodes.items() if not is_running]:
        do = "Start it: with another node less there is no majority, and nothing is accepted."
        yield Finding("warning", about, f"The node {', '.join(down)} of the cluster does not run.", do)
    if cluster.partitioned:
        do = "Restart the node that was suspended or cut off, and then the others, until none is named."
        sentence = f"Nodes are partitioned, and stay so: {', '.join(cluster.partitioned)}."
        yield Finding("broken", about, sentence, do)
    yield from _leaderless(about, cluster)
    yield from _on_one_node(about, cluster)
    wanted = min(MEMBERS, len(cluster.nodes))
    few = {queue: members for queue, members in cluster.members.items() if len(members) < wanted}
    if not few:
        return
    names = _listed(sorted(few))
    without = [node for node in cluster.nodes if any(node not in members for members in few.values())]
    grow = " and ".join(f"`rabbitmq-queues grow {node} all`" for node in without)
    sentence = f"Quorum queues with fewer than {wanted} members: {names}."
    yield Finding("warning", about, sentence, f"Add the missing members: {grow}.")


def _leaderless(about: str, cluster: ManagementSeen) -> Iterator[Finding]:
    if not cluster.leaderless:
        return
    sentence = (
        f"Quorum queues have no leader: {_listed(sorted(cluster.leaderless))}. They take no messages until a"
        " majority of their members runs: berth repeats results for a client's queue until then, and waits"
        " for its own queues."
    )
    do = (
        "Start the nodes of their members (`rabbitmq-queues quorum_status QUEUE`). If all run, restart the"
        " node of the former leader; a client's queue that is not needed any more can be deleted."
    )
    yield Finding("broken", about, sentence, do)


def _on_one_node(about: str, cluster: ManagementSeen) -> Iterator[Finding]:
    if not cluster.on_one_node:
        return
    down = {node for node, is_running in cluster.nodes.items() if not is_running}
    queues = sorted(cluster.on_one_node.items())
    names = _listed(
        [
            f"{queue} on {node}{' (down: its bindings are unknown)' if node in down else ''}"
            for queue, node in queues
        ]
    )
    sentence = (
        f"Durable classic queues receive berth's messages: {names}. While its node is down, suspended or cut"
        " off, RabbitMQ 3.10 drops messages for such a queue without an error. RabbitMQ 4 refuses them, also"
        " for other queues with the binding."
    )
    do = (
        "Delete each and declare it as a quorum queue (`x-queue-type: quorum`). `berth instance list --ended"
        " --since TIME"
        " --publish` publishes lost ends of builds again."
    )
    yield Finding("warning", about, sentence, do)


def _database(seen: DatabaseSeen) -> Iterator[Finding]:
    about = f"database {seen.store}"
    if seen.problem:
        do = f"See that {seen.place} is there, lets this user in, and has connections left."
        yield Finding("broken", about, _sentence(seen.problem), do)
        return
    if seen.version and _older(seen.version, POSTGRESQL):
        do = f"Use {_dotted(POSTGRESQL)} or newer: nothing older was tried."
        yield Finding("warning", about, f"PostgreSQL is version {seen.version}.", do)
    yield from _clock(about, seen.clock)


def foreign_finding(seen: DatabaseSeen) -> Finding:
    """Return the finding that a database has tables which no migration of berth made."""
    return Finding("broken", f"database {seen.store}", describe_foreign(seen.foreign), FOREIGN_REMEDY)


def _revision(seen: DatabaseSeen) -> Iterator[Finding]:
    about = f"database {seen.store}"
    if seen.foreign:
        yield foreign_finding(seen)
        return
    if not seen.was_made:
        do = "Run `berth system migrate`, or start its worker; if it should have data, check the URL."
        yield Finding("broken", about, "It was never made: it has no tables.", do)
        return
    behind = [package for package in seen.packages if package.revision != package.known[-1]]
    for package in behind:
        at = f"It is at {package.revision or 'no migration'} of {package.name}"
        if package.revision and package.revision not in package.known:
            do = "A newer version migrated it: update this one as well."
            yield Finding("warning", about, f"{at}, which this version does not have.", do)
        else:
            do = "Run `berth system migrate`, or restart its worker: it migrates at its start."
            yield Finding("warning", about, f"{at}, and {package.known[-1]} is the newest.", do)
    for name in seen.unlisted:
        do = "Add the feature to the list again (berth/features.py), or leave the tables: nothing uses them."
        yield Finding("warning", about, f"It has tables of {name}, which this version does not have.", do)
    if not behind:
        of = f"; PostgreSQL is version {seen.version}" if seen.version else ""
        yield Finding("fine", about, f"All migrations are applied{of}.")


def _clock(about: str, ahead: float | None) -> Iterator[Finding]:
    if ahead is None or abs(ahead) < CLOCK_SECONDS:
        return
    level: Level = "broken" if abs(ahead) >= CLOCK_BROKEN else "warning"
    direction = "ahead of" if ahead > 0 else "behind"
    sentence = f"Its clock is {abs(ahead):.1f} s {direction} this machine's."
    yield Finding(level, about, sentence, "Have both follow the same time (chrony, systemd-timesyncd).")


def _problems(seen: BerthSeen) -> Iterator[Finding]:
    """Yield the list of problems as findings, with the sentences that all surfaces show."""
    for problem in seen.problems or ():
        level: Level = "broken" if problem.severity == "critical" else "warning"
        yield Finding(level, problem.object, problem.says, problem.do)
    if seen.problems == ():
        yield Finding("fine", "problems", "No known problems.")


def _never_started(seen: BerthSeen) -> Iterator[Finding]:
    for cell in seen.absent_cells:
        sentence = "Nothing of it was ever started: this berth does not have the cell."
        yield Finding("fine", f"cell {cell}", sentence)
    for name in seen.missing:
        if name.partition(".")[0] == "compute":
            sentence = "No simulated agent has run: the hosts of this cell need agents of your own."
            yield Finding("fine", f"worker {name}", sentence, "")
            continue
        do = f"Start it: `berth run {name.partition('.')[0]}` (with --cell if it belongs to a cell)."
        yield Finding("warning", f"worker {name}", "It has never run: its queues do not exist.", do)


def _ironic(seen: IronicSeen | None) -> Iterator[Finding]:
    if seen is None:
        return
    if seen.problem:
        do = "See that it runs, and the setting ironic_api."
        yield Finding("broken", "Ironic", _sentence(f"It cannot be read: {seen.problem}"), do)
    elif seen.without_class:
        further = seen.without_class - len(seen.some)
        more = f" and {further} more" if further else ""
        of = f"{seen.without_class} of {seen.nodes} nodes have no resource class, so nothing is placed there:"
        do = "Give each its class: `openstack baremetal node set NODE --resource-class CLASS`."
        yield Finding("warning", "Ironic", f"{of} {', '.join(seen.some)}{more}.", do)
    else:
        yield Finding("fine", "Ironic", f"All of its {seen.nodes} nodes have a resource class.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _older(version: str, than: tuple[int, ...]) -> bool:
    parts = []
    for part in version.split(".")[: len(than)]:
        digits = "".join(sign for sign in part if sign.isdigit())
        if not digits:
            return False  # an unknown format of versions
        parts.append(int(digits))
    return tuple(parts) < than


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith(".") else f"{text}."
