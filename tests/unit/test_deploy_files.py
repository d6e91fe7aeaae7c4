"""The files in deploy/ and berth/service_files start existing workers with existing settings."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from berth import command_table, worker_roles
from berth.__main__ import app
from berth.settings import KINDS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SERVICE_FILES = ROOT / "berth/service_files"
UNITS = sorted((SERVICE_FILES / "systemd").glob("*.service"))
RUN = dict(command_table.commands(app))["run"]
OPTIONS = {option for parameter in RUN.params for option in parameter.opts}


def documents() -> Iterator[tuple[str, Any]]:
    for path in [DEPLOY / "compose.yml", *sorted((SERVICE_FILES / "kubernetes").glob("*.yml"))]:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield path.name, document


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words after `berth`, wherever a worker is started."""
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=\S+/berth (.*)$", unit.read_text(encoding="utf-8"), re.M)
        yield unit.name, line.split()
    for name, document in documents():
        for service in document.get("services", {}).values():
            if "command" in service and "entrypoint" not in service:
                yield name, service["command"]
        for container in _containers(document):
            yield name, container["args"]


def _containers(document: Any) -> list[Any]:
    if document.get("kind") != "Deployment":
        return []
    found: list[Any] = document["spec"]["template"]["spec"]["containers"]
    return found


def settings() -> Iterator[tuple[str, str, str]]:
    for file in (SERVICE_FILES / "systemd").glob("*.env"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.partition("=")
                yield file.name, name, value
    for line in re.findall(r"^ENV (.*)$", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), re.M):
        for one in line.split():
            name, _, value = one.partition("=")
            yield "Containerfile", name, value
    for name, document in documents():
        given = [document.get("data", {})] if document.get("kind") == "ConfigMap" else []
        given += [service.get("environment", {}) for service in document.get("services", {}).values()]
        for one in given:
            yield from ((name, key, value) for key, value in one.items() if key.startswith("BERTH_"))


COMMANDS, SETTINGS = list(commands()), list(settings())


def test_deploy_files_exist() -> None:
    assert {name for name, _ in COMMANDS} >= {"berth@.service", "compose.yml", "placement.yml"}
    assert {name for name, *_ in SETTINGS} == {
        "berth.env",
        "worker.env",
        "Containerfile",
        "compose.yml",
        "settings.yml",
    }


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=[f"{n}: {' '.join(w)}" for n, w in COMMANDS])
def test_every_started_worker_exists(where: str, words: list[str]) -> None:
    if words[0] == "--config":
        words = words[2:]
    run, worker, *flags = words
    assert run == "run"
    assert worker in worker_roles.WORKERS or worker == "%i"
    named = [flag for flag in flags if flag.startswith("--")]
    assert set(named) <= OPTIONS
    if worker == "compute" and "--cell" not in named:
        assert "--agent" in named, "the file of an agent names its only cell"
    else:
        assert ("--cell" in named) == (worker in ("conductor", "compute", "metal", "ferry"))


def test_every_assigned_setting_exists() -> None:
    for _, name, value in SETTINGS:
        setting = name.removeprefix("BERTH_").removesuffix("_FILE").lower()
        assert setting in {known.replace(".", "_") for known in KINDS} or name == "BERTH_CONFIG"
        assert isinstance(value, str) and value, "what is no text is quoted in YAML"


OF_A_CELL = ("conductor", "compute", "metal")
OWNERS = re.compile("AMQP_URL|DATABASE_URL|berth\\.env|berth-owner")


def started_in_cells() -> Iterator[tuple[str, list[str], str]]:
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        (line,) = re.findall(r"^ExecStart=\S+/berth (.*)$", text, re.M)
        yield unit.name, line.split(), re.sub("^#.*$", "", text, flags=re.M)
    for name, document in documents():
        for service in document.get("services", {}).values():
            if "entrypoint" not in service:
                yield name, service.get("command", []), json.dumps(service)
        for container in _containers(document):
            yield name, container["args"], json.dumps(document)


def test_workers_of_a_cell_use_the_cells_settings_file() -> None:
    found = [(name, words, text) for name, words, text in started_in_cells() if set(words) & {*OF_A_CELL}]
    units = {"berth-conductor@.service", "berth-agent@.service"}
    assert {name for name, *_ in found} == {*units, "compose.yml", "conductor-c1.yml"}
    for name, words, text in found:
        assert words[0] == "--config" and words[1].endswith(".toml"), name
        assert not OWNERS.search(text), name
    files = [words[1] for name, words, _ in found if name == "compose.yml"]
    assert len(files) == len(set(files)) == 4


def test_no_two_workers_of_a_cell_share_a_secret() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))["services"]
    mounted = [
        volume.split(":")[0]
        for name, service in services.items()
        if name.startswith(("conductor-", "compute-"))
        for volume in service["volumes"]
    ]
    assert len(mounted) == len(set(mounted)) == 4
    secrets = {
        name: volume["secret"]["secretName"]
        for name, document in documents()
        if document.get("kind") == "Deployment"
        for volume in document["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert secrets == {
        "placement.yml": "berth",
        "scheduler.yml": "berth",
        "conductor-c1.yml": "berth-cell-c1",
    }


def test_deployments_select_and_mount_what_they_create() -> None:
    made = [document for _, document in documents() if document.get("kind") == "Deployment"]
    assert len(made) > 2
    for one in made:
        spec = one["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        for container in _containers(one):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_its_units(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text(encoding="utf-8").replace(
        "/opt/berth/bin/berth", shutil.which("true") or "/bin/true"
    )
    copy = tmp_path / unit.name.replace("@", "@c1")
    copy.write_text(text.replace("User=berth\nGroup=berth\n", ""))
    sent = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    ours = [line for line in sent.stderr.splitlines() if unit.name.partition("@")[0] in line]
    assert ours == []


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None or os.geteuid() != 0, reason="it needs systemd and root"
)
def test_systemd_makes_the_user_and_the_directories(tmp_path: Path) -> None:
    (tmp_path / "etc/berth").mkdir(parents=True)
    (tmp_path / "etc/berth/amqp_url").touch(mode=0o644)
    for tool, *words in ("sysusers",), ("tmpfiles", "--create"):
        file = SERVICE_FILES / "systemd" / f"berth.{tool}"
        subprocess.run([f"systemd-{tool}", f"--root={tmp_path}", *words, file], check=True)
    (user,) = re.findall(r"^berth:.*", (tmp_path / "etc/passwd").read_text(), re.M)
    made = (tmp_path / "var/lib/berth").stat()
    assert user.split(":")[2] == str(made.st_uid) and user.endswith("/usr/sbin/nologin")
    assert made.st_mode & 0o777 == 0o700
    assert (tmp_path / "etc/berth/amqp_url").stat().st_mode & 0o777 == 0o640


def test_the_rabbitmq_definitions_can_be_imported() -> None:
    answer = json.loads(
        (SERVICE_FILES / "services" / "rabbitmq-definitions.json").read_text(encoding="utf-8")
    )
    (may,) = answer["permissions"]
    assert may["vhost"] in [one["name"] for one in answer["vhosts"]]
    assert "password" not in json.dumps(answer)


def test_the_postgresql_settings_keep_durability() -> None:
    text = (SERVICE_FILES / "services" / "postgresql.conf").read_text(encoding="utf-8")
    reply = dict(re.findall(r"^([a-z_]+) = (.*)$", text, re.M))
    assert len(reply) > 10
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & reply.keys()


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements*.lock")), ids=lambda lock: lock.name)
def test_every_locked_package_has_hashes_and_no_index(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8").replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(packages) > 20
    assert [line for line in packages if "==" not in line or "--hash=sha256:" not in line] == []
    assert "://" not in text and "--index" not in text


@pytest.mark.parametrize("name", ["Makefile", "deploy/Containerfile", "docs/running.md"])
def test_every_install_from_a_lock_file_requires_hashes(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    text = text.replace("$(HASHED)", "--require-hashes" if "HASHED := --require-hashes " in text else "")
    installs = re.findall(r"install [^;&|\n]*-r \S*\.lock", text)
    assert installs and all("--require-hashes" in install for install in installs)
