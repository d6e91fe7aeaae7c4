"""The kinds of problems of the kernel. Features add theirs in their modules `problems`.

A kind without a judgement in `judgement.py` is found only by the rates that Prometheus keeps.
"""

from bus.problems import Alert, ProblemKind

# Workers and their services

WORKER_SILENT = ProblemKind(
    name="worker-silent",
    severity="critical",
    says="No answer from {workers}.",
    consequence="The process ended, hangs, or its machine is unreachable. Its messages wait in its queues,"
    " and none is lost.",
    do="See why it does not run (`systemctl status`, `kubectl describe`, its log), and start it again.",
    link="/bus",
    alert=Alert(
        name="BerthWorkerDown",
        expr='up{job="berth"} == 0',
        after="1m",
        values={"workers": "{{ $labels.instance }}"},
    ),
)
WORKER_SLOW = ProblemKind(
    name="worker-slow",
    severity="warning",
    says="Slow answers from {workers}.",
    consequence="Builds become slow, and timeouts may follow.",
    do="See whether its processor or its database is fully used (docs/metrics.md); run another replica.",
    link="/bus",
)
PROCESS_RESTARTED = ProblemKind(
    name="process-restarted",
    severity="warning",
    says="{process} ended without being stopped and was started again, {times}.",
    consequence="The process crashed or was killed, for example because of too little memory. Its messages"
    " were delivered again.",
    do="Read the last lines of its log before the restart, and check whether the kernel's out-of-memory"
    " killer ended it.",
    link="/audit?act=process+restart",
    alert=Alert(
        name="BerthRestartsOften",
        expr='changes(process_start_time_seconds{job="berth"}[30m]) > 3',
        values={"process": "{{ $labels.instance }}", "times": "{{ $value }} times in half an hour"},
    ),
)
BROKER_UNREACHABLE = ProblemKind(
    name="broker-unreachable",
    severity="critical",
    says="No connection of {worker} to RabbitMQ{at}.",
    consequence="It reconnects until it succeeds, and receives and publishes no messages until then.",
    do="Check whether RabbitMQ runs (`rabbitmq-diagnostics status`) and, with `berth doctor`, whether it"
    " accepts this user.",
    alert=Alert(
        name="BerthWithoutBroker",
        expr="berth_broker_connections == 0",
        after="1m",
        values={"worker": "{{ $labels.instance }}", "at": " at {{ $labels.broker }}"},
    ),
)
BROKER_BREAKS_OFF = ProblemKind(
    name="broker-breaks-off",
    severity="warning",
    says="The connection to RabbitMQ of {worker} was lost more than three times in 15 minutes.",
    consequence="After each loss the messages in progress are delivered again, which takes time and loses"
    " nothing.",
    do="Read the reason in RabbitMQ's log (missed heartbeats, a proxy's timeout, memory), and check the"
    " network between them.",
    alert=Alert(
        name="BerthBrokerBreaksOff",
        expr="increase(berth_broker_connections_lost_total[15m]) > 3",
        values={"worker": "{{ $labels.instance }}"},
    ),
)
DATABASE_UNREACHABLE = ProblemKind(
    name="database-unreachable",
    severity="critical",
    says="No connection of {worker} to its database.",
    consequence="Its messages wait until the database is reachable.",
    do="Check whether PostgreSQL runs, and its free connections (max_connections) and disk; `berth doctor`"
    " shows its answer.",
    alert=Alert(
        name="BerthDatabaseAway",
        expr="increase(berth_database_refused_total[5m]) > 5",
        after="2m",
        values={"worker": "{{ $labels.instance }}"},
    ),
)
RACES_LOST = ProblemKind(
    name="races-lost",
    severity="warning",
    says="More than 20 transactions a second of {worker} conflict with others.",
    consequence="Each transaction is repeated, so nothing is lost, but claims become slow.",
    do="Find statements that hold locks for long (pg_stat_activity), such as a backup in one transaction or"
    " an open psql session.",
    alert=Alert(
        name="BerthRacesLost",
        expr="rate(berth_transactions_lost_total[10m]) > 20",
        after="10m",
        values={"worker": "{{ $labels.instance }}"},
    ),
)
NOT_CHECKED = ProblemKind(
    name="not-checked",
    severity="warning",
    says="Problems of {what} are unknown: {why}.",
    consequence="The list of problems may be incomplete.",
    do="Run `berth doctor`, which checks the services that the answer needs.",
)
SCHEDULERS_FEWER = ProblemKind(
    name="schedulers-fewer",
    severity="warning",
    says="Fewer schedulers run than within the last hour.",
    consequence="The remaining schedulers divide the hosts among themselves, and take over the waiting"
    " requests.",
    do="Restart the missing scheduler, unless an operator stopped it.",
    alert=Alert(
        name="BerthSchedulersFewer",
        expr="min(berth_schedulers_live) < max(max_over_time(berth_schedulers_live[1h]))",
        after="5m",
    ),
)

# Messages and queues

DEAD_LETTERS = ProblemKind(
    name="dead-letters",
    severity="warning",
    says="Dead letters: {count}, of {queues}.",
    consequence="The messages were unreadable, had no consumer for minutes, or failed five times: what they"
    " request is not done.",
    do="`berth system dead list` shows the reasons; after the repair, `berth system dead replay` publishes"
    " them again.",
    link="/bus/dead",
    alert=Alert(
        name="BerthDeadLetters",
        expr='sum by (worker, topic) (increase(berth_messages_total{outcome="dead"}[15m])) > 0',
        values={"count": "{{ $value | humanize }}", "queues": "{{ $labels.worker }}:{{ $labels.topic }}"},
    ),
)
HANDLER_FAULTS = ProblemKind(
    name="handler-faults",
    severity="warning",
    says="A handler of {worker} raised an unexpected error on {topic}.",
    consequence="The message is retried five times, and is then a dead letter.",
    do="The worker's log has the traceback; report it, with the message from `berth system dead show` if"
    " there is"
    " one.",
    alert=Alert(
        name="BerthBugs",
        expr='sum by (worker, topic) (increase(berth_messages_total{outcome="fault"}[15m])) > 0',
        values={"worker": "{{ $labels.worker }}", "topic": "{{ $labels.topic }}"},
    ),
)
RETRIES = ProblemKind(
    name="retries",
    severity="warning",
    says="{worker} retries more messages of {topic} than it completes.",
    consequence="A service that it needs is unreachable or slow; messages are retried, at least every five"
    " seconds. Gateways, which retry orders in progress, are not counted.",
    do="Its log names the service; `berth doctor` checks all services.",
    alert=Alert(
        name="BerthPutsOff",
        expr=(
            'sum by (worker, topic) (rate(berth_messages_total{outcome="retry",worker!~"gateway[.].*"}[10m]))'
            ' > sum by (worker, topic) (rate(berth_messages_total{outcome="done"}[10m]))'
        ),
        after="15m",
        values={"worker": "{{ $labels.worker }}", "topic": "{{ $labels.topic }}"},
    ),
)
HANDLERS_SLOW = ProblemKind(
    name="handlers-slow",
    severity="warning",
    says="{worker} needs more than ten seconds for 1 % of the messages of {topic} (p99).",
    consequence="Builds become slow, and timeouts may follow.",
    do="Check whether its processor is fully used (process_cpu_seconds_total near 1 a second, so run another"
    " replica), or the database is slow.",
    alert=Alert(
        name="BerthSlow",
        expr=(
            "histogram_quantile(0.99, sum by (worker, topic, le) (rate(berth_handling_seconds_bucket[10m])))"
            " > 10"
        ),
        after="15m",
        values={"worker": "{{ $labels.worker }}", "topic": "{{ $labels.topic }}"},
    ),
)
QUEUE_UNREAD = ProblemKind(
    name="queue-unread",
    severity="critical",
    says="No consumer of {queues}: {messages} wait.",
    consequence="Messages wait, and are handled when the worker of the queue runs.",
    do="Start the worker, or see in its log why it does not consume the queue.",
    link="/bus",
)
LAG = ProblemKind(
    name="lag",
    severity="warning",
    says="Consumers are behind: {messages} wait in {queues}.",
    consequence="Requests take longer, because workers publish more messages than their consumers handle.",
    do="Run more replicas of the consumers, or give them a faster database; `berth doctor` checks the"
    " services.",
    link="/bus",
    alert=Alert(
        name="BrokerQueuesGrow",
        expr=(
            "sum(rabbitmq_queue_messages_ready) > 100000 and"
            " sum(deriv(rabbitmq_queue_messages_ready[15m])) > 0"
        ),
        after="15m",
        values={"messages": "{{ $value | humanize }} messages", "queues": "RabbitMQ"},
    ),
)
FERRY_LAG = ProblemKind(
    name="ferry-lag",
    severity="critical",
    says="A message from or to cell {cell} (direction {way}) has waited for a minute at its ferry.",
    consequence="The cell's broker, the central broker or the consumer is unreachable; messages wait at the"
    " broker where they were published.",
    do="The ferry's log shows what it waits for; if its machine is lost, start it elsewhere (`berth run"
    " ferry --cell`).",
    alert=Alert(
        name="BerthFerryLags",
        expr="max by (cell, way) (berth_ferry_lag_seconds) > 60",
        after="5m",
        values={"cell": "{{ $labels.cell }}", "way": "{{ $labels.way }}"},
    ),
)
BROKER_DISK = ProblemKind(
    name="broker-disk",
    severity="critical",
    says="RabbitMQ has too little free disk space, and accepts no messages.",
    consequence="Publishers wait until the alarm ends.",
    do="Free disk space; `berth doctor` names the nodes and the queues without a consumer.",
    alert=Alert(name="BrokerDiskAlarm", expr="rabbitmq_alarms_free_disk_space_watermark == 1"),
)
BROKER_MEMORY = ProblemKind(
    name="broker-memory",
    severity="critical",
    says="RabbitMQ has too little memory, and accepts no messages.",
    consequence="Publishers wait until the alarm ends.",
    do="`rabbitmq-diagnostics memory_breakdown` shows the use of memory; `berth doctor` names queues without"
    " a consumer.",
    alert=Alert(name="BrokerMemoryAlarm", expr="rabbitmq_alarms_memory_used_watermark == 1"),
)

# Hosts, agents and cells

AGENT_LATE = ProblemKind(
    name="agent-late",
    severity="critical",
    says="No heartbeat from {agents} of cell {cell}: {hosts} down.",
    consequence="No builds are placed there, and orders to these hosts wait. Their instances may still run.",
    do="See whether the agent's process runs and is not suspended, and restart it;"
    " `berth host list --cell {cell} --closed` lists the hosts.",
    link="/hosts",
)
HOST_DOWN = ProblemKind(
    name="host-down",
    severity="critical",
    says="Hosts down: {hosts}.",
    consequence="No builds are placed there. Their instances may still run.",
    do="`berth host list --closed` shows why; repair the host, or evacuate it, which builds its instances"
    " again on other hosts.",
    link="/hosts",
    alert=Alert(
        name="BerthHostsDown",
        expr='max(berth_scheduler_hosts{status="down"}) > 0',
        after="5m",
        values={"hosts": "{{ $value }}"},
    ),
)
HOST_FORCED_DOWN = ProblemKind(
    name="host-forced-down",
    severity="warning",
    says="Forced down by an operator: {hosts}.",
    consequence="No builds are placed there, whatever the agent reports.",
    do="After the repair: `berth host force-down --undo {first}`.",
    link="/hosts/{root}",
)
HOST_DISABLED_LONG = ProblemKind(
    name="host-disabled-long",
    severity="warning",
    says="Disabled for more than {days} days: {hosts}.",
    consequence="The capacity of these hosts is not used.",
    do="`berth host show {first}` has the cause; `berth host enable {first}` lets builds be placed there"
    " again.",
    link="/hosts/{root}",
)
HOST_DISABLED_BY_AGENT = ProblemKind(
    name="host-disabled-by-agent",
    severity="warning",
    says="Disabled by their agents: {hosts}; {why}.",
    consequence="No builds are placed there, until the agents enable these hosts again.",
    do="`berth host show {first}` has the reason; the agent's log and driver say what it waits for.",
    link="/hosts/{root}",
)
CELL_DISABLED = ProblemKind(
    name="cell-disabled",
    severity="warning",
    says="Disabled by an operator: {cells}.",
    consequence="No new builds are placed there.",
    do="`berth cell enable {first}` lets builds be placed there again.",
)

# Builds

BUILDS_FAIL = ProblemKind(
    name="builds-fail",
    severity="warning",
    says="More than a tenth of the builds of cell {cell} ended in error in the last 15 minutes.",
    consequence="All alternates of these builds failed.",
    do="`berth instance list --status error` lists them, `berth why BUILD` shows the result of each attempt;"
    " disable a host on which all builds fail (`berth host disable`).",
    link="/builds?failed=1",
    alert=Alert(
        name="BerthBuildsFail",
        expr=(
            'sum by (cell) (rate(berth_builds_ended_total{status="error"}[15m]))'
            " > 0.1 * sum by (cell) (rate(berth_builds_ended_total[15m]))"
        ),
        after="15m",
        values={"cell": "{{ $labels.cell }}"},
    ),
)
NO_HOST = ProblemKind(
    name="no-host",
    severity="warning",
    says="More than {most} builds found no host in half an hour.",
    consequence="The cloud has too little free capacity for the requested flavors, or a filter rejects too"
    " many hosts.",
    do="`berth why REQUEST` shows which requirement rejected the hosts, and which change would help.",
    link="/builds?failed=1",
    alert=Alert(
        name="BerthNoRoom",
        expr="sum(increase(berth_scheduler_unplaceable_total[30m])) > 20",
        values={"most": "20"},
    ),
)

# Stale data

CHANGES_HELD_UP = ProblemKind(
    name="changes-held-up",
    severity="critical",
    says="Placement cannot publish its changes.",
    consequence="Schedulers choose with outdated data: claims stay correct, but more of them are refused. Up"
    " to 500,000 changes are stored; beyond that, schedulers reload all hosts.",
    do="Placement cannot reach RabbitMQ or PostgreSQL; its log names the service.",
    alert=Alert(name="BerthChangesHeldUp", expr="berth_relay_held_up == 1", after="2m"),
)
INDEX_BEHIND = ProblemKind(
    name="index-behind",
    severity="warning",
    says="The index of one placement process is 1,000 commits behind another.",
    consequence="Its answers are outdated; its claims stay correct.",
    do="Check whether its processor is fully used; after a restart it reads everything again.",
    alert=Alert(
        name="BerthMemoryBehind",
        expr="max(berth_placement_last_change) - min(berth_placement_last_change) > 1000",
        after="2m",
    ),
)

# Ironic

NODE_STUCK = ProblemKind(
    name="node-stuck",
    severity="warning",
    says="Ironic nodes that wait for an operator in the state {state}: {nodes}.",
    consequence="Nothing is deployed on these nodes until an operator acts in Ironic.",
    do="`openstack baremetal node show {first}` has the last error; repair the node, then let Ironic provide"
    " it again.",
    link="/metal?state=failed",
)
IRONIC_UNREADABLE = ProblemKind(
    name="ironic-unreadable",
    severity="warning",
    says="No complete sweep of Ironic's nodes has ended for an hour.",
    consequence="Changes without a notification stay undetected.",
    do="`berth ironic diff` calls Ironic's API, and shows the error.",
    alert=Alert(
        name="BerthIronicUnread",
        expr="time() - berth_ironic_swept_at > 3600 and berth_ironic_swept_at > 0",
        after="5m",
    ),
)
IRONIC_UNREACHABLE = ProblemKind(
    name="ironic-unreachable",
    severity="critical",
    says="Ironic's API cannot be read: {why}.",
    consequence="Which nodes are stuck is unknown, and nodes that become available stay closed.",
    do="See that Ironic runs, and the setting ironic_api.",
    link="/metal",
)
IRONIC_SILENT = ProblemKind(
    name="ironic-silent",
    severity="warning",
    says="berth does not receive Ironic's notifications.",
    consequence="Changes of nodes are found only by sweeps, after seconds instead of milliseconds.",
    do="Check whether Ironic's RabbitMQ accepts berth's user, and whether Ironic publishes notifications"
    " (`[oslo_messaging_notifications]`, docs/ironic.md).",
    alert=Alert(
        name="BerthDeafToIronic", expr="berth_ironic_hearing == 0 and berth_ironic_nodes > 0", after="5m"
    ),
)
IRONIC_UNREPAIRED = ProblemKind(
    name="ironic-unrepaired",
    severity="warning",
    says="Differences of Ironic's nodes need an operator: {what}.",
    consequence="berth does not repair them alone, for example if many nodes are missing together.",
    do="`berth ironic diff` lists them, and docs/ironic.md explains how to permit the repair.",
    alert=Alert(
        name="BerthIronicUnrepaired",
        expr="sum by (what) (berth_ironic_unrepaired) > 0",
        after="30m",
        values={"what": "{{ $labels.what }}"},
    ),
)

KINDS: tuple[ProblemKind, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, ProblemKind)
)
