"""The role for Kolla-Ansible: its files are valid, and its templates make settings that berth accepts."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jinja2 import Environment, StrictUndefined

from berth.kit.testing import read
from features.keystone.settings import KeystoneSettings
from features.nova.settings import NovaSettings
from ironic_sync.extension import cloud_access
from tests.support.snippets import ROOT

ROLE = ROOT / "deploy/kolla/roles/berth"
FILES = sorted((ROOT / "deploy/kolla").rglob("*.yml"))
MODULES = {
    "ansible.builtin.assert",
    "ansible.builtin.file",
    "ansible.builtin.import_role",
    "ansible.builtin.import_tasks",
    "ansible.builtin.include_tasks",
    "ansible.builtin.set_fact",
    "ansible.builtin.template",
    "kolla_container",
    "kolla_toolbox",
}
KEYWORDS = {
    "become", "delegate_to", "loop", "loop_control", "name", "no_log", "register", "run_once", "vars", "when",
}  # fmt: skip
ACTIONS = ("deploy", "loadbalancer", "precheck", "pull", "reconfigure", "stop", "upgrade")
OF_KOLLA: Mapping[str, Any] = {
    "api_interface_address": "10.0.0.5",
    "berth_nova_database_password": "reads",
    "berth_rabbitmq_password": "carries",
    "database_address": "10.0.0.9",
    "database_port": "3306",
    "default_project_domain_name": "Default",
    "default_user_domain_name": "Default",
    "enable_nova": "yes",
    "groups": {"rabbitmq": ["c1", "c2"]},
    "keystone_internal_url": "http://10.0.0.9:5000",
    "node_config_directory": "/etc/kolla",
    "om_rpc_password": "asks",
    "om_rpc_user": "openstack",
    "om_rpc_vhost": "nova",
    "openstack_region_name": "RegionOne",
    "placement_api_port": "8780",
    "placement_keystone_password": "checks",
    "rabbitmq_port": "5672",
}


class UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that refuses a mapping with two equal keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len({*keys}), f"{node.start_mark}: a key occurs twice"
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


def loaded(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), UniqueKeys)


def rendered(text: str, variables: Mapping[str, Any]) -> str:
    """Return a text with its variables replaced, as Ansible does: values may have variables, too."""
    engine = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    engine.filters |= {
        "bool": lambda value: str(value).lower() in ("yes", "true", "1"),
        "kolla_address": lambda network, host: f"10.0.1.{host[1:]}",
        "put_address_in_context": lambda address, context: address,
    }
    while "{{" in text or "{%" in text:
        text = engine.from_string(text).render(variables)
    return text


def written(directory: Path, template: str, **changed: Any) -> Path:
    """Write the file of a template with the defaults of the role, and return it."""
    variables = {**OF_KOLLA, **loaded(ROLE / "defaults/main.yml")}
    variables |= {"berth_database_url": "postgresql://berth:stores@10.0.0.7/berth", **changed}
    file = directory / template
    text = (ROLE / f"templates/{template}.j2").read_text(encoding="utf-8")
    file.write_text(rendered(text, variables))
    return file


def tasks() -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in sorted((ROLE / "tasks").glob("*.yml")):
        yield from ((file, task) for task in loaded(file))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_is_one_document_without_tabs_and_spaces_at_ends(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("---\n") and text.endswith("\n") and loaded(file)
    assert [line for line in text.splitlines() if "\t" in line or line != line.rstrip()] == []


def test_each_task_has_a_name_and_one_known_module() -> None:
    for file, task in tasks():
        assert task["name"], file
        assert len(task.keys() & MODULES) == 1 and task.keys() <= MODULES | KEYWORDS, (file, task)


def test_files_that_tasks_include_exist() -> None:
    for file, task in tasks():
        if included := task.get("ansible.builtin.import_tasks"):
            assert (ROLE / "tasks" / included).exists(), (file, included)
    for action in ACTIONS:
        assert (ROLE / f"tasks/{action}.yml").exists(), action


def test_each_service_runs_a_worker_and_is_in_the_playbook_and_the_inventory() -> None:
    services = loaded(ROLE / "defaults/main.yml")["berth_services"]
    (play,) = loaded(ROOT / "deploy/kolla/berth.yml")
    inventory = (ROOT / "deploy/kolla/inventory").read_text(encoding="utf-8")
    assert play["hosts"] == [service["group"] for service in services.values()]
    assert re.findall(r"^\[([\w-]+):children\]$", inventory, re.M) == play["hosts"]
    for name, service in services.items():
        assert service["command"] == f"run {name.removeprefix('berth-')}"
        assert service["volumes"][0].startswith(f"{{{{ node_config_directory }}}}/{name}/:/etc/berth")


@pytest.mark.parametrize("service", ["berth-placement", "berth-scheduler", "berth-nova"])
def test_berth_accepts_the_settings(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(written(tmp_path, "clouds.yaml")))
    further = 'scheduler_filters = ["-io_ops"]'
    file = written(tmp_path, "berth.toml", service=service, berth_settings=further)
    values = tomllib.loads(file.read_text(encoding="utf-8"))
    settings = read(file=file, environment={}).settings
    assert settings.of(KeystoneSettings).cloud == "kolla"
    assert bool(settings.of(NovaSettings).database_url) == (service == "berth-nova")
    assert values["amqp_url"] == "amqp://berth:carries@10.0.1.1:5672,10.0.1.2:5672/berth"
    assert ("placement_http" in values) == (service == "berth-placement")
    assert ("nova_amqp_url" in values) == (service == "berth-nova")


def test_the_cloud_names_the_user_that_checks_tokens(tmp_path: Path) -> None:
    file = written(tmp_path, "clouds.yaml")
    access = cloud_access("kolla", environment={"OS_CLIENT_CONFIG_FILE": str(file)})
    assert (access.auth["username"], access.interface) == ("placement", "internal")
    assert access.keystone_url == "http://10.0.0.9:5000/v3"
