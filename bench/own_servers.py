"""Starts servers for one measurement, and deletes them and their data when the measurement has ended."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from berth.configuration import SUPERVISED_ENV
from deploy.servers import Postgres, RabbitMQ, private_directory


@contextmanager
def own_directory() -> Iterator[Path]:
    directory = private_directory("berth-bench-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def broker_and_database() -> Iterator[tuple[str, str]]:
    """Start a broker and a database; yield their URLs."""
    with (
        own_directory() as directory,
        RabbitMQ(directory / "rabbitmq") as rabbitmq,
        Postgres(directory / "postgres") as postgres,
    ):
        yield rabbitmq.url, postgres.url


@contextmanager
def broker_at(url: str | None) -> Iterator[str]:
    """Yield the URL of the given broker, or of a new one if no URL is given."""
    if url:
        yield url
        return
    with own_directory() as directory, RabbitMQ(directory / "rabbitmq") as rabbitmq:
        yield rabbitmq.url


@contextmanager
def running(*words: str, **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Run `python -m` with these words until the block ends; `options` are of `subprocess.Popen`."""
    with started(*words, **options) as process:  # closes its pipes
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def started(*words: str, env: Mapping[str, str] = os.environ, **options: Any) -> "subprocess.Popen[Any]":
    """Start `python -m` with these words. A command of berth ends when this process ends, also by SIGKILL."""
    supervised = {**env, SUPERVISED_ENV: "1"}  # berth then ends when its standard input closes
    options = {"stdin": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", *words], env=supervised, **options)


def of_berth(amqp_url: str, database_url: str, cells: int, hosts: int, **more: object) -> dict[str, str]:
    """Return the environment variables for a berth on the servers at the given URLs. `more` are further
    settings by name, such as `simulator_fail`.
    """
    of_cells = ",".join(f"c{number + 1}" for number in range(cells))
    # The control room is not used here, and its port may be in use.
    fixed = {"control_room_http": "off", "layout": "separate"}
    named = {"cells": of_cells, "simulator_hosts": hosts, **fixed, **more}
    urls = {"BERTH_AMQP_URL": amqp_url, "BERTH_DATABASE_URL": database_url}
    return {**os.environ, **urls, **{f"BERTH_{name.upper()}": str(value) for name, value in named.items()}}
