"""Reads the options of other services that berth follows from their own configuration files.

A file has the format of oslo.config. Only the options below are read; an option without a line has the
default of its service.
"""

from dataclasses import dataclass

from berth.kit.oslo_conf import OsloConf, read_conf
from berth.settings import Settings


@dataclass(frozen=True)
class IronicConf:
    """The options of Ironic's notifications."""

    exchange: str
    topics: tuple[str, ...]


def ironic_conf(path: str) -> IronicConf:
    """Return Ironic's options in its configuration file, or their defaults if `path` is empty; raise BadConf
    if the file cannot be used.
    """
    conf = OsloConf(path)
    return IronicConf(
        exchange=conf.text("DEFAULT", "control_exchange", "ironic"),
        topics=conf.words("DEFAULT", "versioned_notifications_topics", "ironic_versioned_notifications"),
    )


def ironic_options(settings: Settings) -> IronicConf:
    """Return Ironic's options in the file that the setting ironic_conf names; raise BadSetting if it is
    wrong.
    """
    return read_conf("ironic_conf", settings.ironic.connection.conf, ironic_conf)


def keeps_used_nodes(settings: Settings) -> bool:
    """Return Nova's option skip_reserve_in_use_ironic_nodes, in the file that the setting nova_conf names: an
    available Ironic node with an instance stays schedulable.
    """
    return read_conf(
        "nova_conf",
        settings.ironic.connection.nova_conf,
        lambda path: OsloConf(path).flag("workarounds", "skip_reserve_in_use_ironic_nodes"),
    )
