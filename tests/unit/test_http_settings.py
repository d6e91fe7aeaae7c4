"""Settings of the HTTP API, and refused values."""

from typing import Any

import pytest

from berth import settings_checks, worker_roles
from berth.configuration import read
from berth.settings import BadSetting, Settings

pytestmark = pytest.mark.usefixtures("no_settings_file")

DOOR = {"placement_http": "127.0.0.1:8778"}


def settings_of(**flags: Any) -> Settings:
    return read(flags, environment={}).settings


@pytest.mark.parametrize(
    "flags",
    [
        {},
        DOOR,
        {"placement_http": "localhost:0"},
        {"placement_http": "127.9.9.9:1"},
        {"placement_http": "[::1]:8778"},
        {"placement_http": "0.0.0.0:8778", "placement_auth": "tokens", "placement_tokens": "t.toml"},
        {"placement_cors_origins": "https://a, https://b"},
    ],
)
def test_valid_settings_of_the_http_api(flags: dict[str, Any]) -> None:
    settings_of(**flags)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"placement_keep_alive": "-1"}, "placement_keep_alive = -1.0: must be at least 0"),
        ({"placement_keep_alive": "inf"}, "placement_keep_alive = inf: must be a finite number of seconds"),
        ({"placement_http": "8778"}, "placement_http = '8778': takes HOST:PORT"),
        ({"placement_http": ":8778"}, "takes HOST:PORT"),
        ({"placement_http": "127.0.0.1:x"}, "takes HOST:PORT"),
        ({"placement_http": "127.0.0.1:70000"}, "takes HOST:PORT"),
        ({"placement_http": "0.0.0.0:8778"}, "with noauth2 every client that reaches it may do anything"),
        ({"placement_http": "[::]:8778"}, "with noauth2"),
        ({"placement_http": "10.1.2.3:8778"}, "with noauth2"),
        ({"placement_http": "placement.example:8778"}, "with noauth2"),
        ({"placement_auth": "none"}, "placement_auth = a text of 4 characters: is noauth2"),
        ({"http_certificate": "/none.pem"}, "http_key = '': name the certificate and its key"),
        ({"http_key": "/none.pem"}, "http_certificate = '': name the certificate and its key"),
        (
            {"http_certificate": "/none.pem", "http_key": "/none.pem"},
            "/none.pem and /none.pem cannot be used",
        ),
        ({"placement_auth": "tokens"}, "placement_tokens = '': name the file of tokens"),
    ],
)
def test_invalid_settings_of_the_http_api_are_refused(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        settings_of(**flags)
    assert why in str(refusal.value)


def test_a_method_of_authentication_of_a_missing_feature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_checks, "authentication_methods", tuple)
    monkeypatch.setitem(settings_checks._CHOICES, "placement_auth", ("noauth2", "tokens"))
    with pytest.raises(
        BadSetting, match="is noauth2 or tokens; no feature of this berth adds another method"
    ):
        settings_of(placement_auth="missing")


def test_berth_up_needs_a_state_directory() -> None:
    with pytest.raises(BadSetting, match="name a directory, with a / at the end"):
        worker_roles.roles_of(Settings().having(database_url="sqlite+aiosqlite:////somewhere/placement.db"))
