"""`berth init` writes the files of a new installation, and `berth system man` writes the manual pages."""

import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated

from berth.commands.settings_options import Cells
from berth.configuration import read
from berth.kit.command_groups import Commands, Json
from berth.kit.options import described, positional
from berth.kit.secret_files import write_secret
from berth.kit.terminal import note, say, write_json
from berth.settings import BadSetting
from berth.worker_roles import WORKERS

commands = Commands()

_EDITED = (".toml", ".env", ".conf", ".service", ".yml")  # files that operators edit
_NEXT = {
    "up": ("berth up", "in another terminal: berth boot --wait"),
    "systemd": (
        "systemd-sysusers; systemd-tmpfiles --create; systemctl daemon-reload",
        "write the URLs of RabbitMQ and PostgreSQL into /etc/berth/amqp_url and /etc/berth/database_url",
        "systemctl enable --now berth@placement berth@scheduler berth@control-room",
        "set -a; . /etc/berth/berth.env",
        "for each cell: berth cell create CELL --file /etc/berth/CELL.toml",
        "               systemctl enable --now berth-conductor@CELL",
    ),
    "kubernetes": (
        "kubectl create secret generic berth --from-file=amqp_url --from-file=database_url",
        "for each cell: berth cell create CELL; kubectl create secret generic berth-cell-CELL"
        " --from-file=CELL.toml",
        "kubectl apply -f DIRECTORY",
    ),
}


@commands.command("init")
def init_command(
    directory: Annotated[
        Path | None,
        positional("Where the files go (default: this directory; / with systemd).", file_okay=False),
    ] = None,
    layout: Annotated[str, described("What runs the workers.", metavar="up|systemd|kubernetes")] = "up",
    cells: Cells = "c1,c2",
    program: Annotated[
        Path | None, described("The program that systemd starts (default: this one).", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a settings file that describes every setting, and the service files of a layout.

    `up`: berth.toml, for `berth up` in that directory. `systemd`: /etc/berth, units, users, directories,
    manual pages, shell completion, and settings of RabbitMQ, PostgreSQL and Prometheus in
    /usr/local/share/berth. `kubernetes`: manifests. A file that exists with a different text
    stays as it is, and the new text is written as FILE.new.
    """
    from berth.__main__ import app
    from berth.layouts import LAYOUTS, files_of

    if layout not in LAYOUTS:
        raise BadSetting(f"--layout {layout!r}: it is {', '.join(LAYOUTS[:-1])} or {LAYOUTS[-1]}")
    names: tuple[str, ...] = ()
    if cells is not None:
        names = read({"cells": cells}, environment={}, file=Path(os.devnull)).settings.cell_names
    for name in names:
        if layout == "kubernetes" and "_" in name:
            raise BadSetting(f"--cells: {name!r}: names of Kubernetes objects have no _")
        if layout == "systemd" and name in (*WORKERS, "berth", "worker"):
            raise BadSetting(f"--cells: {name!r}: the settings files of this cell would have names of others")
    root = directory or Path("/" if layout == "systemd" else ".")
    _write({root / path: text for path, text in files_of(layout, names, app, program)}, as_json)
    if not as_json:
        say.print("next:")
        for step in _NEXT[layout]:
            say.print(f"  {step.replace('DIRECTORY', str(root))}", markup=False)


@commands.command("man")
def man_command(
    directory: Annotated[Path, positional("Where the pages go.", file_okay=False)], as_json: Json = False
) -> None:
    """Write a manual page of each command, and berth.toml(5) with all settings, into a directory."""
    from berth.__main__ import app
    from berth.man_pages import man_pages

    _write({directory / name: text for name, text in man_pages(app)}, as_json)


def _write(texts: Mapping[Path, str], as_json: bool) -> None:
    """Write files, and print the path of each. If a file that operators edit, such as berth.toml, exists with
    a different text, write FILE.new instead.
    """
    written = list[Path]()
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        edited = path.exists() and path.suffix in _EDITED
        target = path.with_name(f"{path.name}.new") if edited else path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".toml":
            write_secret(target, text)  # the operator may add URLs with passwords
        else:
            target.write_text(text, encoding="utf-8")
        written.append(target)
        if edited:
            note(f"{path} has a different text: compare it with {target}")
    if as_json:
        for path in texts:
            write_json({"file": str(path), "written": str(path) if path in written else ""})
        return
    for folder, paths in groupby(sorted(written), lambda path: path.parent):
        names = [path.name for path in paths]
        say.print(f"{folder}: {', '.join(names) if len(names) < 12 else f'{len(names)} files'}", markup=False)
    if not written:
        say.print("every file is there already")
