"""Options of other services, read from their configuration files."""

from pathlib import Path

import pytest

from berth.configuration import read
from berth.kit.oslo_conf import BadConf
from berth.openstack_conf import IronicConf, ironic_conf
from berth.settings import BadSetting

pytestmark = pytest.mark.usefixtures("no_settings_file")


def written(text: str, name: str = "service.conf") -> str:
    Path(name).write_text(text)
    return name


def test_options_of_ironic_are_read_from_its_file() -> None:
    assert ironic_conf("") == IronicConf("ironic", ("ironic_versioned_notifications",))
    text = "[DEFAULT]\ncontrol_exchange = metal\nversioned_notifications_topics = a,b\n"
    assert ironic_conf(written(text)) == IronicConf("metal", ("a", "b"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[DEFAULT]\ncontrol_exchange = $name\n", "[DEFAULT] control_exchange: berth does not resolve"),
        ("[DEFAULT]\nversioned_notifications_topics = ,\n", "topics: must not be empty"),
        ("control_exchange\n", "line 1 is neither [GROUP] nor OPTION = VALUE"),
        ("[DEFAULT]\n\n  5\n", "line 3 continues no option"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadConf) as refused:
        ironic_conf(written(text))
    assert says in str(refused.value)


@pytest.mark.parametrize("name", ["nova_conf", "ironic_conf"])
def test_a_missing_file_is_refused_with_the_setting(name: str) -> None:
    with pytest.raises(BadSetting, match=rf"^--set {name}: {name} = 'nowhere': cannot be read: No such"):
        read(sets={name: "nowhere"}, environment={})
