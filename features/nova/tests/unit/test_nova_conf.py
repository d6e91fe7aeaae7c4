"""Options of Nova, read from its configuration file."""

from pathlib import Path

import pytest

from berth.kit import BadConf, BadSetting, Settings
from berth.kit.testing import read
from features.nova.conf import NovaConf, NovaSchedulerConf, nova_conf, nova_options, nova_scheduler_conf
from features.nova.processes import scheduler_address

pytestmark = pytest.mark.usefixtures("no_settings_file")


FILE = """\
[DEFAULT]
# service_down_time = 1
my_ip = 10.0.0.1
transport_url = rabbit://nova:${secret}@h/
control_exchange = "cloud"
service_down_time = 30
service_down_time: 120
default_availability_zone = north
long_rpc_timeout=600

[oslo_messaging_rabbit]
amqp_durable_queues = True
rabbit_quorum_queue = on
rabbit_transient_quorum_queue = true
[scheduler]
max_attempts = 5
query_placement_for_routed_network_aggregates = yes
[oslo_messaging_notifications]
driver = messagingv2
driver = log
topics = notifications,billing
[notifications]
notification_format = both
versioned_notifications_topics = versioned_notifications,
  audit
"""


def written(text: str) -> str:
    Path("service.conf").write_text(text)
    return "service.conf"


def test_options_of_nova_are_read_from_its_file() -> None:
    assert nova_conf(written(FILE)) == NovaConf(
        exchange="cloud", durable_queues=True, quorum_queues=True, durable_fanout=True,
        service_down_time=120, max_attempts=5, long_rpc_timeout=600, default_zone="north",
        routed_networks=True,
        notification_format="both",
        notification_topics=("versioned_notifications", "audit"),
        unversioned_topics=("notifications", "billing"),
    )  # fmt: skip


def test_options_of_nova_scheduler_are_read_for_the_check() -> None:
    text = """\
[scheduler]
limit_tenants_to_placement_aggregate = true
placement_aggregate_required_for_tenants = true
enable_isolated_aggregate_filtering = true
query_placement_for_image_type_support = true
image_metadata_prefilter = true
discover_hosts_in_cells_interval = 300
[filter_scheduler]
enabled_filters = ComputeFilter, mine.filters.RackFilter
weight_classes = nova.scheduler.weights.ram.RAMWeigher
ram_weight_multiplier = -1
cpu_weight_multiplier = 1
host_subset_size = 5
[metrics]
weight_multiplier = 2.5
"""
    assert nova_scheduler_conf(written(text)) == NovaSchedulerConf(
        filters=("ComputeFilter", "RackFilter"), weighers=("RAMWeigher",), subset=5, discovery=300,
        multipliers={"ram_weight_multiplier": ("ram", -1.0), "[metrics] weight_multiplier": ("metrics", 2.5)},
        tenant_aggregates=True, tenant_aggregates_required=True, isolate_aggregates=True, image_types=True,
        image_metadata=True,
    )  # fmt: skip
    assert nova_scheduler_conf("") == nova_scheduler_conf(written("[scheduler]\n")) == NovaSchedulerConf()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[filter_scheduler]\nram_weight_multiplier = many", "ram_weight_multiplier: takes a number"),
        ("[scheduler]\ndiscover_hosts_in_cells_interval = inf", "interval: takes a number"),
        ("[filter_scheduler]\nhost_subset_size = 0", "host_subset_size: takes a whole number of at least 1"),
        ("[scheduler]\nimage_metadata_prefilter = maybe", "image_metadata_prefilter: takes true or false"),
    ],
)
def test_a_wrong_option_of_nova_scheduler_is_named(line: str, says: str) -> None:
    with pytest.raises(BadConf, match=says):
        nova_scheduler_conf(written(line))


@pytest.mark.parametrize(
    ("drivers", "form"),
    [((), ""), (("noop",), ""), (("messagingv2",), "unversioned"), (("noop", "messagingv2"), "unversioned")],
)
def test_without_a_driver_nova_publishes_no_notifications(drivers: tuple[str, ...], form: str) -> None:
    lines = "".join(f"driver = {driver}\n" for driver in drivers)
    assert nova_conf(written(f"[oslo_messaging_notifications]\n{lines}")).notification_format == form


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[DEFAULT]\nservice_down_time = soon\n", "[DEFAULT] service_down_time: takes a whole number of at"),
        ("[DEFAULT]\nservice_down_time = 0\n", "[DEFAULT] service_down_time: takes a whole number of at"),
        ("[DEFAULT]\nservice_down_time = $report_interval\n", "[DEFAULT] service_down_time: berth does not"),
        ("[scheduler]\nmax_attempts =\n", "[scheduler] max_attempts: takes a whole number of at least 1"),
        (
            "[oslo_messaging_rabbit]\nrabbit_quorum_queue = maybe\n",
            "rabbit_quorum_queue: takes true or false",
        ),
        ("[notifications]\nnotification_format = new\n", "is versioned, unversioned or both"),
        ("[notifications]\nversioned_notifications_topics = ,\n", "topics: must not be empty"),
        ("service_down_time\n", "line 1 is neither [GROUP] nor OPTION = VALUE"),
        ("[DEFAULT]\n\n  5\n", "line 3 continues no option"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadConf) as refused:
        nova_conf(written(text))
    assert says in str(refused.value)


def test_a_missing_file_is_refused_with_the_setting() -> None:
    with pytest.raises(BadSetting, match=r"^nova_conf = 'nowhere': cannot be read"):
        nova_options(Settings().having(nova_conf="nowhere"))


def test_a_wrong_option_is_refused_when_settings_are_read() -> None:
    wrong = written("[scheduler]\nmax_attempts =\n")
    with pytest.raises(BadSetting, match=r"^--set nova_conf: .*max_attempts: takes a whole number"):
        read(sets={"nova_conf": wrong}, environment={})


def test_the_bridge_follows_the_options() -> None:
    address = scheduler_address(
        Settings().having(
            nova_conf=written(FILE),
            nova_amqp_url="amqp://h/nova",
            nova_database_url="postgresql://h/nova_api",
        )
    )
    assert (address.exchange, address.durable, address.quorum) == ("cloud", True, True)
