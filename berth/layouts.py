"""Makes the files of an installation: described settings, service files, manual pages, shell completion."""

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from typer._completion_shared import get_completion_script

from berth import __version__
from berth.commands.descriptions import COMPLETION_VARIABLE
from berth.man_pages import man_pages
from berth.reference_tables import toml_value
from berth.setting_tables import settings_there_are

LAYOUTS = ("up", "systemd", "kubernetes")
FIRST_METRICS_PORT = 9100  # berth/service_files/prometheus/prometheus.yml reads this port and the next ports
_INSTALLED = "/opt/berth/bin/berth"  # the program in berth/service_files/systemd
_WIDTH = 110

_HEAD = f"""\
# The settings of berth, written by `berth init` of version {__version__}. A line that begins with #name shows
# a default: remove the # to change it. All times are in seconds. BERTH_NAME in the environment overrides
# this file, unless --config names it; --set NAME=VALUE overrides both. For URLs with passwords use
# BERTH_NAME_FILE, the name of a file with the value. `berth reference settings` prints the settings in
# force and the source of each.
"""
COMPLETIONS = {  # shell → place of its script below /usr/local/share
    "bash": "bash-completion/completions/berth",
    "zsh": "zsh/site-functions/_berth",
    "fish": "fish/vendor_completions.d/berth.fish",
}


def settings_file(values: Mapping[str, Any]) -> str:
    """Return a TOML file with the given values, and with each other setting as a comment with its default."""
    parts = [_HEAD]
    for group, members in groupby(settings_there_are(), lambda setting: setting.group):
        parts.append(f"\n{_comment(group, '## ')}\n")
        for setting in members:
            mark = "" if setting.name in values else "#"
            value = toml_value(values.get(setting.name, setting.default))
            says = setting.says.replace("\\|", "|")
            parts.append(f"{_comment(says, '# ')}{mark}{setting.name} = {value}\n")
    return "\n".join(parts)


def _comment(text: str, mark: str) -> str:
    lines = textwrap.wrap(text, _WIDTH, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def completion_script(shell: str) -> str:
    """Return the script for completion in this shell."""
    script = get_completion_script(prog_name="berth", complete_var=COMPLETION_VARIABLE, shell=shell)
    return f"{script.rstrip()}\n"


def files_of(
    layout: str, cells: Sequence[str], app: typer.Typer, berth: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of an installation; `berth`: the path of the program that
    services start.
    """
    if layout == "up":
        yield "berth.toml", settings_file({"cells": cells})
    elif layout == "kubernetes":
        yield from _kubernetes(cells)
    else:
        yield from _systemd(cells, str(berth or Path(sys.prefix) / "bin" / "berth"))
        for name, text in man_pages(app):
            yield f"usr/local/share/man/man{name[-1]}/{name}", text
        ports = range(FIRST_METRICS_PORT, FIRST_METRICS_PORT + len(_metered(cells)))
        targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        for folder in ("services", "prometheus", "grafana"):
            for name, text in _deployed(folder):
                text = re.sub(rf'"127.0.0.1:{FIRST_METRICS_PORT}",[^]]*', targets, text)
                yield f"usr/local/share/berth/{name}", text
        for shell, path in COMPLETIONS.items():
            yield f"usr/local/share/{path}", completion_script(shell)


def _systemd(cells: Sequence[str], berth: str) -> Iterator[tuple[str, str]]:
    yield "etc/berth/berth.toml", settings_file({"cells": cells, "state_dir": "/var/lib/berth"})
    for name, text in _deployed("systemd"):
        kind = name.rpartition(".")[2]
        folder = {"service": "etc/systemd/system", "env": "etc/berth"}.get(kind)
        path = f"{folder}/{name}" if folder else f"etc/{kind}.d/berth.conf"
        yield path, text.replace(_INSTALLED, berth)
    for place, worker in enumerate(_metered(cells)):
        yield f"etc/berth/{worker}.env", f"BERTH_METRICS_HTTP=127.0.0.1:{FIRST_METRICS_PORT + place}\n"


def _metered(cells: Sequence[str]) -> Sequence[str]:
    """Return the names of the workers with a metrics port, in port order; a conductor is listed by its cell's
    name.
    """
    return ("placement", "scheduler", *cells, "control-room", "rest")


def _kubernetes(cells: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, text in _deployed("kubernetes"):
        if name == "conductor-c1.yml":
            for cell in cells:
                yield name.replace("c1", cell), text.replace("c1", cell)
        else:
            yield name, text.replace("BERTH_CELLS: c1", f"BERTH_CELLS: {','.join(cells)}")


def _deployed(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file in a folder of berth/service_files, sorted by name."""
    for file in sorted((files("berth") / "service_files" / folder).iterdir(), key=lambda file: file.name):
        yield file.name, file.read_text(encoding="utf-8")
