"""The Helm chart renders valid Kubernetes objects, and each worker gets what it needs and nothing else."""

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft7Validator

from berth import worker_roles
from berth.cell_file import CellFile, write_cell_file
from berth.configuration import read
from berth.settings import KINDS as SETTINGS
from berth.settings import Settings
from tests.support.helm import TemplateError, render
from tests.support.kubernetes import KINDS
from tests.support.snippets import ROOT

CHART = ROOT / "deploy/helm/berth"
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
PEERS = [{"ipBlock": {"cidr": "192.0.2.0/24"}}]
CHANGES = {
    "cells": ["c1", "c2"],
    "agents": [{"cell": "c1", "name": "c1-agent1"}, {"cell": "c2", "name": "c2-agent1"}],
    "agentSettings": {"BERTH_SIMULATOR_HOSTS": "50"},
    "tls": {"secret": "berth-tls"},
    "placementApi": {"enabled": True},
    "rest": {"enabled": True},
    "controlRoom": {"enabled": True, "names": ["berth.example.com"]},
    "ownerSettings": {"BERTH_MAX_WAIT": "3600"},
    "ironic": {
        "enabled": True,
        "cloud": "ironic",
        "notifications": True,
        "settings": {"BERTH_IRONIC_ZONE": "az1"},
        "agents": [{"cell": "c1", "name": "c1-metal"}],
    },
    "networkPolicies": {
        **DEFAULTS["networkPolicies"],
        "enabled": True,
        **dict.fromkeys(("broker", "database", "openstack", "clients", "prometheus"), PEERS),
    },
}
EVERYTHING = {**DEFAULTS, **CHANGES}
KEYSTONE = {**EVERYTHING, "auth": {**DEFAULTS["auth"], "method": "keystone"}}
OPEN_POLICIES = {**EVERYTHING, "networkPolicies": {**DEFAULTS["networkPolicies"], "enabled": True}}
CASES = {"default": DEFAULTS, "everything": EVERYTHING, "keystone": KEYSTONE, "any peer": OPEN_POLICIES}


def objects(values: dict[str, Any], before: str = "", after: str = "") -> list[Any]:
    """Return the objects of the chart, after a change of its templates."""

    def change(text: str) -> str:
        return text.replace(before, after) if before else text

    texts = render(CHART, copy.deepcopy(values), change).values()
    return [one for text in texts for one in yaml.safe_load_all(text) if one is not None]


def problems(found: list[Any]) -> list[str]:
    """Return what the schemas of Kubernetes refuse, and names that refer to nothing."""
    sentences = []
    for one in found:
        name = f"{one.get('kind')} {one.get('metadata', {}).get('name')}"
        if one.get("kind") not in KINDS:
            sentences.append(f"{name}: unknown kind")
            continue
        for error in Draft7Validator(KINDS[one["kind"]]).iter_errors(one):
            sentences.append(f"{name}: {error.json_path}: {error.message}")
    return sentences or [*_dangling(found)]


def _dangling(found: list[Any]) -> list[str]:
    sentences = []
    pods = {one["metadata"]["name"]: one["spec"] for one in of_kind(found, "Deployment")}
    config_maps = {one["metadata"]["name"] for one in of_kind(found, "ConfigMap")}
    for name, spec in pods.items():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        ports = {port["name"] for port in container["ports"]}
        probes = [container[key]["httpGet"]["port"] for key in container if key.endswith("Probe")]
        sentences += [f"{name}: a probe of no port: {port}" for port in probes if port not in ports]
        if spec["selector"]["matchLabels"] != spec["template"]["metadata"]["labels"]:
            sentences.append(f"{name}: selects other pods")
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        if sorted(mounts) != sorted(volume["name"] for volume in pod["volumes"]):
            sentences.append(f"{name}: mounts {mounts}")
        if unknown := {ref["configMapRef"]["name"] for ref in container["envFrom"]} - config_maps:
            sentences.append(f"{name}: no ConfigMap {unknown}")
    for one in found:
        if (selector := _selector(one)) is not None and not (chosen := _selected(selector, pods)):
            sentences.append(f"{one['kind']} {one['metadata']['name']}: selects no pod")
        elif one["kind"] == "Service":
            targets = {port["targetPort"] for port in one["spec"]["ports"]}
            for pod in chosen:
                (container,) = pod["template"]["spec"]["containers"]
                if not targets <= {port["name"] for port in container["ports"]}:
                    sentences.append(f"Service {one['metadata']['name']}: no port {targets}")
    return sentences


def _selector(one: Any) -> dict[str, str] | None:
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        return dict(spec["selector"])
    found = {"PodDisruptionBudget": "selector", "NetworkPolicy": "podSelector"}.get(one["kind"])
    return dict(spec[found]["matchLabels"]) if found else None


def _selected(selector: dict[str, str], pods: dict[str, Any]) -> list[Any]:
    return [pod for pod in pods.values() if selector.items() <= pod["template"]["metadata"]["labels"].items()]


def of_kind(found: list[Any], kind: str) -> list[Any]:
    return [one for one in found if one["kind"] == kind]


def workers(values: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of each worker by the worker's name."""
    return {
        one["spec"]["template"]["metadata"]["labels"]["worker"]: one["spec"]["template"]["spec"]
        for one in of_kind(objects(values), "Deployment")
    }


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_template_renders_valid_objects(values: dict[str, Any]) -> None:
    found = objects(values)
    assert problems(found) == []
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("containerPort: 9100", "containerport: 9100", "'containerport' was unexpected"),
        ("replicas: {{ .replicas }}", "", "'replicas' is a required property"),
        ("targetPort: api", "targetPort: http", "no port {'http'}"),
        ("port: metrics}", "port: metric}", "a probe of no port: metric"),
        ("runAsNonRoot: true", "runAsNonRoot: false", "True was expected"),
        ("matchLabels: {app: {{ .release }}, ", "matchLabels: {app: other, ", "selects"),
        ("{name: state, mountPath", "{name: stat, mountPath", "mounts"),
    ],
)
def test_a_broken_template_is_refused(before: str, after: str, why: str) -> None:
    assert any(why in sentence for sentence in problems(objects(EVERYTHING, before, after)))


@pytest.mark.parametrize(
    ("before", "after"), [(".Values.cells", ".Values.cell"), ("{{- end }}", ""), ("| quote", "| quoted")]
)
def test_a_template_with_an_error_does_not_render(before: str, after: str) -> None:
    with pytest.raises(TemplateError):
        objects(EVERYTHING, before, after)


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_the_schema_of_the_values_accepts_them(values: dict[str, Any]) -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert [error.message for error in Draft7Validator(SCHEMA).iter_errors(values)] == []


def test_the_schema_describes_every_value() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> list[str]:
        below = schema.get("properties", {}).items()
        lacking = [f"{path}.{name}" for name, one in below if not one.get("description")]
        return lacking + [word for name, one in below for word in undescribed(one, f"{path}.{name}")]

    assert undescribed(SCHEMA, "") == []
    assert SCHEMA["properties"].keys() - {"global"} == DEFAULTS.keys()


@pytest.mark.parametrize(
    "change",
    [
        {"cell": ["c1"]},
        {"cells": []},
        {"auth": {"method": "noauth2"}},
        {"replicas": {"agents": 1}},
        {"agents": [{"name": "a"}]},
        {"settings": {"LOG_LEVEL": "info"}},
        {"rest": {"enabled": "yes"}},
        {"networkPolicies": {"broker": [{"ip": "192.0.2.1"}]}},
    ],
    ids=str,
)
def test_the_schema_refuses_wrong_values(change: dict[str, Any]) -> None:
    assert [*Draft7Validator(SCHEMA).iter_errors({**DEFAULTS, **change})]


def test_the_manifests_are_the_chart_with_its_default_values() -> None:
    def by_name(found: list[Any]) -> dict[tuple[str, str], Any]:
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    files = (ROOT / "berth/service_files/kubernetes").glob("*.yml")
    manifests = [one for path in files for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    assert problems(manifests) == []
    assert by_name(manifests) == by_name(objects(DEFAULTS))


@pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm here")
def test_helm_renders_the_same_objects(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(EVERYTHING))
    words = [str(CHART), "--values", str(tmp_path / "values.yaml")]
    subprocess.run(["helm", "lint", "--strict", *words], check=True)
    made = subprocess.run(
        ["helm", "template", "berth", *words], check=True, capture_output=True, text=True
    ).stdout
    rendered = [one for one in yaml.safe_load_all(made) if one]
    expected = objects(EVERYTHING)
    assert len(rendered) == len(expected) and all(one in rendered for one in expected)


def test_everything_deploys_every_worker_of_the_chart() -> None:
    assert workers(DEFAULTS).keys() == {"placement", "scheduler", "conductor-c1"}
    assert workers(EVERYTHING).keys() == {
        "placement",
        "scheduler",
        "rest",
        "control-room",
        "ironic",
        *("conductor-c1", "conductor-c2", "agent-c1-agent1", "agent-c2-agent1", "metal-c1-metal"),
    }
    services = {one["metadata"]["name"] for one in of_kind(objects(EVERYTHING), "Service")}
    assert services == {"berth-metrics", "berth-placement-api", "berth-rest", "berth-control-room"}


def environment_of(pod: dict[str, Any], found: list[Any]) -> dict[str, str]:
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(found, "ConfigMap")}
    (container,) = pod["containers"]
    environment: dict[str, str] = {}
    for ref in container["envFrom"]:
        environment |= maps[ref["configMapRef"]["name"]]
    return environment | {one["name"]: one["value"] for one in container["env"]}


CLOUDS = """\
clouds:
  ironic: {auth_type: none, baremetal_endpoint_override: "http://192.0.2.1:6385"}
  berth: {auth_type: password, auth: {auth_url: "http://192.0.2.2:5000/v3", username: b, password: p}}
"""


@pytest.mark.parametrize(
    "values", [DEFAULTS, EVERYTHING, KEYSTONE], ids=["default", "everything", "keystone"]
)
def test_every_worker_accepts_its_arguments_and_settings(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = objects({**values, "tls": {"secret": ""}})  # a certificate would be loaded
    (tmp_path / "clouds.yaml").write_text(CLOUDS)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    for name, text in {
        "amqp_url": "amqp://b:p@192.0.2.3/",
        "ironic_amqp_url": "amqp://i:p@192.0.2.3/",
        "database_url": "postgresql://b:p@192.0.2.4/berth",
    }.items():
        (tmp_path / name).write_text(text)
    known = {f"BERTH_{setting.upper().replace('.', '_')}" for setting in SETTINGS}
    for one in of_kind(found, "Deployment"):
        pod = one["spec"]["template"]["spec"]
        environment = environment_of(pod, found)
        assert {variable.removesuffix("_FILE") for variable in environment} <= known
        for variable, value in environment.items():
            if variable.endswith("_FILE"):
                environment[variable] = str(tmp_path / Path(value).name)
        words, file = pod["containers"][0]["args"], None
        options = dict(zip(words[::2], words[1::2], strict=False)) if words[0] == "--config" else {}
        cell, agent = options.get("--cell", ""), options.get("--agent", "")
        if options:
            file = tmp_path / Path(options["--config"]).relative_to("/etc/berth")
            database = "sqlite+aiosqlite:///./" if agent else "postgresql://c:p@192.0.2.4/cell"
            write_cell_file(file, cell, Settings(), CellFile("amqp://c:p@192.0.2.3/", database))
        settings = read(file=file, environment=environment).settings
        assert options.get("run", words[1]) in worker_roles.WORKERS
        worker_roles.role_named(options.get("run", words[1]), cell, settings, agent)


def test_no_worker_of_a_cell_has_the_secret_of_another() -> None:
    secrets: dict[str, list[str]] = {
        name: [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
        for name, pod in workers(EVERYTHING).items()
    }
    central = {"placement", "scheduler", "rest", "control-room", "ironic"}
    of_cells = [names[0] for worker, names in secrets.items() if worker not in central]
    assert len(of_cells) == len(set(of_cells)) == 5 and "berth" not in of_cells
    assert {secrets[name][0] for name in central} == {"berth"}
    assert secrets["scheduler"] == ["berth"]
    assert set(secrets["rest"]) == {"berth", "berth-tls", "berth-tokens"}
    assert set(secrets["metal-c1-metal"]) == {"berth-agent-c1-metal", "berth-openstack"}


def test_network_policies_permit_only_what_a_worker_needs() -> None:
    ports = {
        one["spec"]["podSelector"]["matchLabels"]["worker"]: (
            {port["port"] for rule in one["spec"]["ingress"] for port in rule["ports"]},
            {port["port"] for rule in one["spec"]["egress"] for port in rule["ports"]} - {53, 5671, 5672},
        )
        for one in of_kind(objects(EVERYTHING), "NetworkPolicy")
    }
    openstack = {443, 5000, 6385}
    cell = ({9100}, {5432})
    assert ports == {
        "placement": ({9100, 8778}, {5432}),
        "scheduler": cell,
        "rest": ({9100, 8779}, {5432}),
        "control-room": ({9100, 8780}, {5432}),
        "ironic": ({9100}, {5432} | openstack),
        **dict.fromkeys(("conductor-c1", "conductor-c2"), cell),
        **dict.fromkeys(("agent-c1-agent1", "agent-c2-agent1"), ({9100}, set())),
        "metal-c1-metal": ({9100}, openstack),
    }


def test_a_worker_with_one_process_has_no_disruption_budget() -> None:
    found = objects(EVERYTHING)
    several = {one["metadata"]["name"] for one in of_kind(found, "Deployment") if one["spec"]["replicas"] > 1}
    assert {one["metadata"]["name"] for one in of_kind(found, "PodDisruptionBudget")} == several
    assert "berth-control-room" not in several and "berth-agent-c1-agent1" not in several
