"""Reads the access to an OpenStack cloud from clouds.yaml or from OS_* variables, as openstacksdk does."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yaml import YAMLError, safe_load  # type: ignore[import-untyped]

from ironic_sync.access import Access

ENVIRONMENT = "envvars"  # the name of the cloud that the OS_* variables describe, as in openstacksdk
# variables that are no options of authentication → keys of an entry of clouds.yaml
_VARIABLES = {
    "OS_AUTH_TYPE": "auth_type",
    "OS_REGION_NAME": "region_name",
    "OS_INTERFACE": "interface",
    "OS_CACERT": "cacert",
    "OS_CERT": "cert",
    "OS_KEY": "key",
    "OS_INSECURE": "insecure",
    "OS_BAREMETAL_ENDPOINT_OVERRIDE": "baremetal_endpoint_override",
}
_NO_AUTH = {
    *_VARIABLES,
    "OS_CLOUD",
    "OS_CLIENT_CONFIG_FILE",
    "OS_CLIENT_SECURE_FILE",
    "OS_IDENTITY_API_VERSION",
    "OS_ENDPOINT_TYPE",
}


def cloud_access(name: str, url: str = "", environment: Mapping[str, str] = os.environ) -> Access:
    """Return the access of the cloud of that name; a URL replaces that of the entry or the catalogue.

    Raise ValueError, with the file and the key, if the cloud is unknown or cannot be used.
    """
    if name == ENVIRONMENT:
        return _access(_from_variables(environment), url, "the OS_* variables")
    path = _found("OS_CLIENT_CONFIG_FILE", "clouds", environment)
    if path is None:
        raise ValueError("there is no clouds.yaml in ., ~/.config/openstack or /etc/openstack")
    clouds = _clouds(path)
    if name not in clouds:
        raise ValueError(f"{path} has no cloud {name!r}; it has: {', '.join(sorted(clouds)) or 'none'}")
    entry = clouds[name]
    secure = _found("OS_CLIENT_SECURE_FILE", "secure", environment)
    if secure is not None:
        entry = _merged(entry, _clouds(secure).get(name, {}))
    return _access(entry, url, f"{path}: {name}")


def secrets_of_cloud(name: str) -> set[str]:
    """Return the passwords and tokens of the cloud, which must not be logged; none if it cannot be used."""
    try:
        auth = cloud_access(name).auth
    except ValueError:
        return set()
    return {value for key, value in auth.items() if "password" in key or "secret" in key or "token" in key}


def _found(variable: str, stem: str, environment: Mapping[str, str]) -> Path | None:
    """Return the file that the variable names, or the first in the usual folders."""
    if named := environment.get(variable):
        return Path(named)
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folders = (Path(), home / "openstack", Path("/etc/openstack"))
    files = (folder / f"{stem}{ending}" for folder in folders for ending in (".yaml", ".yml"))
    return next((file for file in files if file.is_file()), None)


def _clouds(path: Path) -> dict[str, dict[str, Any]]:
    try:
        content = safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ValueError(f"{path}: cannot be read: {problem.strerror}") from None
    except (YAMLError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{path}: not YAML") from None
    clouds = content.get("clouds") if isinstance(content, dict) else None
    if not isinstance(clouds, dict) or not all(isinstance(entry, dict) for entry in clouds.values()):
        raise ValueError(f"{path}: there must be a table `clouds` of tables")
    return {str(name): entry for name, entry in clouds.items()}


def _merged(entry: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(entry)
    for key, value in other.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _from_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        key: environment[variable] for variable, key in _VARIABLES.items() if environment.get(variable)
    }
    entry["auth"] = {
        name.removeprefix("OS_").lower(): value
        for name, value in environment.items()
        if name.startswith("OS_") and name not in _NO_AUTH and value
    }
    return entry


def _access(entry: Mapping[str, Any], url: str, source: str) -> Access:
    auth = entry.get("auth") or {}
    if not isinstance(auth, dict):
        raise ValueError(f"{source}: auth must be a table")
    options = {str(key).replace("-", "_"): str(value) for key, value in auth.items()}
    kind = str(entry.get("auth_type", "password"))
    endpoint = options.pop("endpoint", "") if kind in ("none", "http_basic") else ""
    verify = entry.get("verify", not _is_true(entry.get("insecure", False)))
    try:
        return Access(
            url=url or str(entry.get("baremetal_endpoint_override", "")) or endpoint,
            auth_type=kind,
            auth=options,
            region=str(entry.get("region_name", "")),
            interface=str(entry.get("interface", "public")),
            ca_file=str(entry.get("cacert", "")),
            cert_file=str(entry.get("cert", "")),
            key_file=str(entry.get("key", "")),
            insecure=not _is_true(verify),
        )
    except ValueError as problem:
        raise ValueError(f"{source}: {problem}") from None


def _is_true(value: Any) -> bool:
    return str(value).lower() not in ("false", "0", "no", "off", "")
