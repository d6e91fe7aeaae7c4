"""The settings with which berth serves or observes a Nova."""

from msgspec import field

from bus.feature import SettingsGroup


class NovaSettings(SettingsGroup, frozen=True, kw_only=True, rename=lambda name: f"nova_{name}"):
    """Settings for the Nova whose scheduler berth replaces (features/nova/README.md)."""

    # URL of the RabbitMQ and virtual host on which Nova calls its scheduler; empty: berth serves no Nova
    amqp_url: str = ""
    database_url: str = ""  # URL of Nova's API database, for a user who may read it
    # URL of the database of a cell of Nova, by the cell's name; without one Nova's own URL is used
    cell_database_urls: dict[str, str] = field(default_factory=dict)
    # time that a call may wait for capacity; Nova's option long_rpc_timeout limits it
    wait: float = 0.0
    # URL of the RabbitMQ and virtual host of Nova's notifications; empty: no shadow mode, and the bridge
    # publishes to nova_amqp_url
    notification_amqp_url: str = ""
    # URL of the virtual host of a nova-scheduler that decides what berth cannot; empty: such requests fail
    fallback_amqp_url: str = ""
