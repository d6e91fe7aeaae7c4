"""Settings from a file and an environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from berth.configuration import Effective, read


def settings_of(environment: Mapping[str, str] | None = None, toml: str = "", **flags: Any) -> Effective:
    if toml:
        Path("berth.toml").write_text(toml)
    return read(flags, environment=environment or {})
