"""Runs a private RabbitMQ: finds its programs and Erlang's, and starts the broker."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from deploy.processes import (
    BinariesMissing,
    Certificate,
    Server,
    Startable,
    Watchdog,
    environment_without,
    exchange,
    executable,
    free_port,
    newest_first,
    search_path,
)

_HINT = "install it (`make services` does) or set BERTH_TEST_AMQP_URL to a broker to use"


@dataclass(frozen=True)
class RabbitMQBinaries:
    server: Path
    epmd: Path
    path: str  # for the variable PATH: directories with the programs of Erlang and of the machine


def find_rabbitmq(unpacked: Path | None = None) -> RabbitMQBinaries:
    """Return the programs in the directory `unpacked`, as `scripts/install-rabbitmq4` unpacks them, or in the
    one that BERTH_TEST_RABBITMQ names, or else those of this machine; raise `BinariesMissing` without any.
    """
    if unpacked is not None:
        return _unpacked(unpacked.resolve())
    if given := os.environ.get("BERTH_TEST_RABBITMQ"):
        return _unpacked(Path(given).resolve())
    places = [
        Path("/usr/lib/rabbitmq/bin"),  # Debian, Ubuntu, Fedora: the real script behind the wrapper
        *newest_first(Path("/usr/lib/rabbitmq/lib"), "rabbitmq_server-*/sbin"),
        Path("/opt/homebrew/opt/rabbitmq/sbin"),
        Path("/usr/local/opt/rabbitmq/sbin"),
        Path("/opt/rabbitmq/sbin"),
        *(Path(entry) for entry in search_path().split(os.pathsep) if entry),
    ]
    server = next(
        (p / "rabbitmq-server" for p in places if _usable_rabbitmq_server(p / "rabbitmq-server")), None
    )
    if server is None:
        raise BinariesMissing(f"no RabbitMQ server (rabbitmq-server) on this machine: {_HINT}")
    if shutil.which("erl", path=search_path()) is None:
        raise BinariesMissing(f"RabbitMQ is here but Erlang (erl) is not on PATH: {_HINT}")
    epmd = _find_epmd()
    if epmd is None:
        raise BinariesMissing(f"RabbitMQ is here but Erlang's epmd was not found: {_HINT}")
    return RabbitMQBinaries(server, epmd, search_path())


def _unpacked(root: Path) -> RabbitMQBinaries:
    server, erlang = root / "usr/lib/rabbitmq/bin/rabbitmq-server", root / "usr/lib/erlang/bin"
    for program in (server, erlang / "erl", erlang / "epmd"):
        if not executable(program):
            problem = f"{root} has no {program.relative_to(root)}"
            raise BinariesMissing(f"{problem}: scripts/install-rabbitmq4 unpacks RabbitMQ 4 into .rabbitmq4")
    return RabbitMQBinaries(server, erlang / "epmd", os.pathsep.join((str(erlang), search_path())))


def _usable_rabbitmq_server(path: Path) -> bool:
    # Debian's /usr/sbin/rabbitmq-server is a wrapper that runs only as root or as the user rabbitmq.
    return executable(path) and "su rabbitmq" not in path.read_text(errors="replace")


def _find_epmd() -> Path | None:
    on_path = shutil.which("epmd", path=search_path())
    if on_path is not None:
        return Path(on_path)
    # Some packages have only a link to `erl` in PATH: epmd is then near the target of the link.
    erl = shutil.which("erl", path=search_path())
    if erl is not None:
        for root in Path(erl).resolve().parents[:2]:
            for place in (root / "epmd", *newest_first(root, "erts-*/bin/epmd")):
                if executable(place):
                    return place
    return None


@dataclass(frozen=True)
class Membership:
    """A node's place in a cluster: its name, the cluster's epmd and cookie, and the node that it joins."""

    name: str
    epmd_port: int
    cookie: str
    joins: str = ""  # empty for the first node


class RabbitMQ(Server):
    """A RabbitMQ node with the default user guest (loopback only), and without plugins by default."""

    name = "RabbitMQ"

    def __init__(
        self,
        directory: Path,
        certificate: Certificate | None = None,
        member: Membership | None = None,
        *,
        management: bool = False,
        samples_often: bool = True,
        plugins: Sequence[str] = (),
        unpacked: Path | None = None,
    ) -> None:
        super().__init__(directory, certificate)
        self._unpacked = unpacked  # the directory of another version of RabbitMQ
        self._management_port = free_port() if management else 0
        self._samples_often = samples_often
        self._plugins = [*plugins, *(["rabbitmq_management"] if management else [])]
        self.tls_port = free_port() if certificate is not None else 0
        self._member = member
        self._epmd_port = member.epmd_port if member is not None else free_port()
        self._distribution_port = free_port()
        self._epmd: subprocess.Popen[bytes] | None = None

    @property
    def binaries(self) -> RabbitMQBinaries:
        return find_rabbitmq(self._unpacked)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def management_url(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self._management_port}"

    @property
    def node_name(self) -> str:
        """Return the name of the Erlang node."""
        return f"{self._member.name if self._member is not None else 'rabbit'}@localhost"

    def variables(self) -> dict[str, str]:
        """Return the variables with which berth and this machine's rabbitmqctl find the running broker."""
        return {
            "BERTH_AMQP_URL": self.url,
            "BERTH_MANAGEMENT_URL": f"http://127.0.0.1:{self._management_port}",
            "RABBITMQ_NODENAME": self.node_name,
            "RABBITMQ_ERLANG_COOKIE": (self.directory / ".erlang.cookie").read_text(),
            "ERL_EPMD_PORT": str(self._epmd_port),
        }

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl with these arguments and return its output, which takes a second."""
        ran = subprocess.run(
            [str(self.binaries.server.with_name("rabbitmqctl")), "--quiet", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env=self.environment(),
            timeout=120,
        )
        if ran.returncode != 0:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def _launch(self) -> None:
        binaries, environment = self.binaries, self.environment()
        if self._member is None:
            self._epmd = _start_epmd(self._epmd_port, self.directory, binaries)
        epmd = [self._epmd.pid] if self._epmd is not None else []
        self._serve([str(binaries.server)], environment, *epmd, watchdog="KILL")

    def environment(self) -> dict[str, str]:
        """Write the configuration files, and return the environment for the server and rabbitmqctl."""
        home = self.directory
        if self._member is not None:
            cookie = home / ".erlang.cookie"
            cookie.unlink(missing_ok=True)
            cookie.write_text(self._member.cookie)
            cookie.chmod(0o400)
        (home / "rabbitmq.conf").write_text("\n".join(self._configuration()) + "\n")
        plugins = home / "enabled_plugins"
        plugins.write_text(f"[{','.join(self._plugins)}].\n")
        empty = home / "rabbitmq-env.conf"
        empty.write_text("")
        environment = environment_without("RABBITMQ_", "ERL_", "NOTIFY_SOCKET")
        environment.update(
            PATH=self.binaries.path,
            HOME=str(home),  # where Erlang keeps its cookie
            LC_ALL="C",
            ERL_CRASH_DUMP=str(home / "erl_crash.dump"),
            ERL_EPMD_ADDRESS="127.0.0.1",
            ERL_EPMD_PORT=str(self._epmd_port),
            # With this setting the start script replaces itself by the broker (exec), so that the child
            # process is the broker, which SIGTERM stops cleanly.
            RUNNING_UNDER_SYSTEMD="true",
            # With one scheduler thread, rabbitmqctl takes a quarter less processor time.
            RABBITMQ_CTL_ERL_ARGS="+S 1:1 +SDcpu 1 +SDio 1 +A 1 +sbwt none",
            RABBITMQ_NODENAME=self.node_name,
            RABBITMQ_DIST_PORT=str(self._distribution_port),
            RABBITMQ_CONF_ENV_FILE=str(empty),
            RABBITMQ_CONFIG_FILE=str(home / "rabbitmq.conf"),
            RABBITMQ_CONFIG_FILES=str(home / "conf.d"),
            RABBITMQ_ADVANCED_CONFIG_FILE=str(home / "advanced.config"),
            RABBITMQ_ENABLED_PLUGINS_FILE=str(plugins),
            RABBITMQ_MNESIA_BASE=str(home / "mnesia"),
            RABBITMQ_LOG_BASE=str(home),
            RABBITMQ_LOGS="-",
            RABBITMQ_PID_FILE=str(home / "rabbitmq.pid"),
            # Two scheduler threads, not bound to cores, because other processes use the cores too.
            RABBITMQ_SCHEDULER_BIND_TYPE="u",
            RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+S 2:2 -kernel inet_dist_use_interface {127,0,0,1}",
        )
        return environment

    def _configuration(self) -> list[str]:
        lines = [
            f"listeners.tcp.default = 127.0.0.1:{self.port}",
            "log.console = true",
            "log.console.level = info",
        ]
        if self._member is not None:
            # as in berth/service_files/services/rabbitmq.conf
            lines += ["cluster_partition_handling = pause_minority", "net_ticktime = 15"]
            if self._member.joins:
                backend = "cluster_formation.peer_discovery_backend"
                lines += [
                    f"{backend} = classic_config",
                    f"cluster_formation.classic_config.nodes.1 = {self._member.joins}@localhost",
                ]
        if self._management_port:
            lines += ["management.tcp.ip = 127.0.0.1", f"management.tcp.port = {self._management_port}"]
        if self._management_port and self._samples_often:
            lines += [
                # By default the API samples every 5 s, and tests wait for what it reports.
                "collect_statistics_interval = 500",  # milliseconds
                *(
                    f"management.sample_retention_policies.{statistics} = 1"  # seconds between two samples
                    for statistics in ("global.minute", "basic.minute", "detailed.10")
                ),
            ]
        if self.certificate is not None:
            lines += [
                f"listeners.ssl.default = 127.0.0.1:{self.tls_port}",
                f"ssl_options.certfile = {self.certificate.certificate}",
                f"ssl_options.keyfile = {self.certificate.key}",
                "ssl_options.verify = verify_none",  # clients authenticate with a password
            ]
        return lines

    def _ready(self) -> bool:
        # The protocol header; a broker that is up answers with a method frame (Connection.Start).
        return exchange(self.port, b"AMQP\x00\x00\x09\x01", 1) == b"\x01"

    def _clean_up(self) -> None:
        if self._epmd is not None:
            self._epmd.kill()  # epmd stores nothing on disk
            self._epmd.wait()
            self._epmd = None
        super()._clean_up()


def _start_epmd(port: int, directory: Path, binaries: RabbitMQBinaries) -> subprocess.Popen[bytes]:
    """Start Erlang's port mapper as a child process, so that no Erlang VM starts it as a daemon."""
    return subprocess.Popen(
        [str(binaries.epmd), "-address", "127.0.0.1", "-port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        env={"PATH": search_path()},
        start_new_session=True,
    )


def make_virtual_hosts(broker: RabbitMQ, *names: str) -> None:
    """Create virtual hosts for the user guest with one command, because rabbitmqctl takes a second."""
    everything = '<<".*">>, <<".*">>, <<".*">>'
    made = "".join(
        f'rabbit_vhost:add(<<"{name}">>, <<"berth">>), rabbit_auth_backend_internal:set_permissions('
        f'<<"guest">>, <<"{name}">>, {everything}, <<"berth">>), '
        for name in names
    )
    broker.control("eval", f"{made}ok.")


class RabbitMQCluster(Startable):
    """Three RabbitMQ nodes on loopback that form a cluster, each with a separate process and directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory).resolve()
        self._epmd_port = free_port()
        cookie = secrets.token_hex(10)
        names = [f"n{number}" for number in range(1, 4)]
        self.nodes = [
            RabbitMQ(
                self._directory / name,
                member=Membership(name, self._epmd_port, cookie, "" if name == names[0] else names[0]),
            )
            for name in names
        ]
        self._epmd: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None

    @property
    def url(self) -> str:
        """Return a URL with the addresses of all nodes."""
        return f"amqp://guest:guest@{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}/"

    def start(self) -> None:
        """Start the nodes that do not run; at the first start, the others join the first."""
        if self._epmd is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._epmd = _start_epmd(self._epmd_port, self._directory, find_rabbitmq())
            self._watchdog = Watchdog("KILL", self._epmd.pid)
        with ThreadPoolExecutor() as threads:
            starts = [threads.submit(node.start) for node in self.nodes[:1]]
            wait(starts)
            starts += [threads.submit(node.start) for node in self.nodes[1:]]
        for start in starts:
            start.result()

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        if self._epmd is not None and self._watchdog is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._watchdog.dismiss()
            self._epmd = self._watchdog = None
