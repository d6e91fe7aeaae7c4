"""The Compose file starts a complete berth: published ports on loopback, secrets in files, known settings."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from jsonschema import Draft7Validator

from berth import worker_roles
from berth.configuration import read
from berth.placement_http import tokens_of
from bus.clock import Clock
from tests.support.kubernetes import TEXT, many, record
from tests.support.snippets import ROOT

FILE = ROOT / "deploy/compose.yml"
COMPOSE = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h)$"}
CONDITIONS = {"enum": ["service_started", "service_healthy", "service_completed_successfully"]}
SERVICE = record(
    {"image": TEXT},
    build=record({"context": TEXT, "dockerfile": TEXT}),
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    stop_grace_period=DURATION,
    hostname=TEXT,
    entrypoint=many(TEXT),
    command=many(TEXT),
    environment={"type": "object", "additionalProperties": {"type": "string"}},
    depends_on={"type": "object", "additionalProperties": record({"condition": CONDITIONS})},
    healthcheck=record(
        {"test": many(TEXT)}, interval=DURATION, timeout=DURATION, retries={"type": "integer"}
    ),
    ports=many({"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}),
    secrets=many({"anyOf": [TEXT, record({"source": TEXT, "target": {"type": "string", "pattern": "^/"}})]}),
    volumes=many({"type": "string", "pattern": "^[a-z0-9-]+:/[^:]+(:ro)?$"}),
)
SCHEMA = record(
    {
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": record({})},
        "secrets": {"type": "object", "additionalProperties": record({"file": TEXT})},
    }
)
SCHEMA["patternProperties"] = {"^x-": {}}


def refused(compose: Any) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(compose)]


def test_the_file_follows_the_schema_of_compose() -> None:
    assert refused(COMPOSE) == []


@pytest.mark.parametrize(
    "change",
    [{"ports": ["8780:8780"]}, {"port": ["127.0.0.1:1:1"]}, {"command": "run rest"}, {"restart": "often"}],
    ids=str,
)
def test_the_schema_refuses_a_wrong_service(change: dict[str, Any]) -> None:
    services = {**SERVICES, "rest": {**SERVICES["rest"], **change}}
    assert refused({**COMPOSE, "services": services})


def names_of_secrets(service: dict[str, Any]) -> set[str]:
    return {one if isinstance(one, str) else one["source"] for one in service.get("secrets", [])}


def test_services_volumes_and_secrets_that_are_named_exist() -> None:
    used: set[str] = set()
    for service in SERVICES.values():
        assert service.get("depends_on", {}).keys() <= SERVICES.keys()
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= COMPOSE["volumes"].keys()
        used |= names_of_secrets(service)
    assert used == COMPOSE["secrets"].keys()
    assert all((FILE.parent / secret["file"]).is_file() for secret in COMPOSE["secrets"].values())


def test_passwords_are_in_files_alone() -> None:
    variables = {name for service in SERVICES.values() for name in service.get("environment", {})}
    assert not {name for name in variables if re.search("PASS|URL|TOKEN", name)} - {
        "POSTGRES_PASSWORD_FILE",
        "BERTH_AMQP_URL_FILE",
        "BERTH_DATABASE_URL_FILE",
        "BERTH_PLACEMENT_TOKENS",
    }
    assert "://berth:" not in FILE.read_text(encoding="utf-8")


def test_control_room_and_rest_are_published_at_the_port_where_they_listen() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"rest": ["127.0.0.1:8779:8779"], "control-room": ["127.0.0.1:8780:8780"]}
    assert SERVICES["rest"]["environment"]["BERTH_REST_HTTP"] == "0.0.0.0:8779"
    assert SERVICES["control-room"]["environment"]["BERTH_CONTROL_ROOM_HTTP"] == "0.0.0.0:8780"


OF_THE_OWNER = [
    name for name, one in SERVICES.items() if "amqp_url" in names_of_secrets(one) and "entrypoint" not in one
]


@pytest.mark.parametrize("name", OF_THE_OWNER)
def test_a_worker_accepts_its_settings_and_secrets(name: str) -> None:
    assert {"placement", "scheduler", "rest", "control-room"} == set(OF_THE_OWNER)
    service = SERVICES[name]
    environment: dict[str, str] = {}
    for variable, value in service["environment"].items():
        secret = Path(value).name
        is_file = value.startswith("/run/secrets/")
        assert not is_file or secret in names_of_secrets(service)
        environment[variable] = str(FILE.parent / COMPOSE["secrets"][secret]["file"]) if is_file else value
    settings = read(environment=environment).settings
    run, worker = service["command"]
    assert run == "run" and worker_roles.role_named(worker, "", settings)
    tokens_of(settings, Clock())


def test_the_broker_and_the_urls_have_the_same_password() -> None:
    texts = {name: (FILE.parent / one["file"]).read_text() for name, one in COMPOSE["secrets"].items()}
    options = dict(re.findall(r"^(\w+) = (\w+)$", texts["rabbitmq.conf"], re.M))
    assert texts["amqp_url"].strip() == "amqp://{default_user}:{default_pass}@rabbitmq:5672/".format(
        **options
    )
    password = texts["postgresql_password"].strip()
    assert texts["database_url"].strip() == f"postgresql://berth:{password}@postgresql:5432/berth"
