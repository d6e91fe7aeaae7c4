"""`make first-region` runs the commands of docs/howto/first-region.md on an empty Debian with systemd, and
prints the time of each.

The machine is a directory with namespaces of its own. Its only network is loopback, so its servers disturb no
others; only apt-get and pip use the network of this machine. This takes root and debootstrap.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from tests.integration.page_reader import commands, exit_codes
from tests.support.snippets import ROOT, snippets

PAGE = ROOT / "docs/howto/first-region.md"
PACKAGES = "ca-certificates,cron,dbus,iproute2,systemd,systemd-sysv"
BOOT = r"""
mount --make-rprivate / && mount --bind . . && cd "$PWD"
mount -t proc proc proc && mount -t sysfs sysfs sys && mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run && mount -t tmpfs -o mode=755 tmpfs dev
make_device() { mknod -m 666 dev/$1 c $2 $3; }
make_device null 1 3 && make_device zero 1 5 && make_device full 1 7
make_device random 1 8 && make_device urandom 1 9 && make_device tty 5 0
ln -s /proc/self/fd dev/fd && ln -s pts/ptmx dev/ptmx && mkdir dev/shm dev/pts && mount -t tmpfs tmpfs dev/shm
ip link set lo up && mkdir -p mnt/before && pivot_root . mnt/before && umount -l /mnt/before
mount --make-rshared /  # credentials of services are mounts that reach others by propagation
exec env -i container=directory PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --system
"""
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
_MARK = re.compile(r"^@@ ([\d.]+)$")


@dataclass(frozen=True)
class Timed:
    command: str
    seconds: float

    def __str__(self) -> str:
        first, *others = self.command.splitlines()
        return f"{self.seconds:7.1f} s  {first}{' …' if others else ''}"


def make_machine(machine: Path, wheel: Path) -> None:
    debootstrap = ["debootstrap", f"--include={PACKAGES}", "bookworm", str(machine)]
    subprocess.run(debootstrap, check=True, stdout=subprocess.DEVNULL)
    for file in (wheel, ROOT / "requirements.lock"):
        shutil.copy(file, machine / "root")
    for name in ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt"):
        shutil.copy(Path("/", name), machine / name)
    (machine / "etc/hosts").write_text("127.0.0.1 localhost region\n")
    (machine / "etc/hostname").write_text("region\n")


def timed(inside: list[str], texts: Iterable[str], environment: Mapping[str, str]) -> Iterator[Timed]:
    """Run the commands in one shell of the machine, print their output, and yield the time of each."""
    every = [command for text in texts for command in commands(text)]
    mark = 'printf "\\n@@ %s\\n" "$EPOCHREALTIME"'
    text = "\n".join(["set -e", "cd", mark, *(f"{_checked(command)}\n{mark}" for command in every)])
    with subprocess.Popen(
        [*inside, "bash", "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdout
        started, left = 0.0, iter(every)
        for line in shell.stdout:
            if (found := _MARK.match(line)) is None:
                sys.stdout.write(line)
                continue
            if started:
                yield Timed(next(left), float(found[1]) - started)
            started = float(found[1])
    assert shell.returncode == 0, f"ended with {shell.returncode}: {next(left, '')}"


def _checked(command: str) -> str:
    """Return the command, without an error if it ends with a code that its comment names."""
    if (codes := exit_codes(command)) == {0}:
        return command
    permitted = "|".join(map(str, codes))
    return f"{{ {command}\n}} && ended=0 || ended=$?\ncase $ended in {permitted}) ;; *) exit 99 ;; esac"


@contextmanager
def booted(machine: Path) -> Iterator[list[str]]:
    """Start systemd in the directory, and yield the words before a command that is run there."""
    words = ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", "-ec", BOOT]
    with subprocess.Popen(words, cwd=machine, stdout=subprocess.DEVNULL) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not (systemd := children.read_text().strip()):
                sleep(0.05)
            inside = ["nsenter", "--target", systemd, *NAMESPACES, "--root", "--wd"]
            is_running = [*inside, "systemctl", "is-system-running"]
            for _ in range(600):
                state = subprocess.run(is_running, capture_output=True, text=True, check=False).stdout.strip()
                if state in ("running", "degraded"):
                    break
                sleep(0.1)
            yield inside
        finally:
            process.kill()


def first_region(machine: Path, wheel: Path, *, stay: bool = False) -> Iterator[Timed]:
    make_machine(machine, wheel)
    texts = [snippet.text for snippet in snippets(PAGE) if snippet.language == "sh"]
    downloads = [text for text in texts if re.search("apt-get|pip install", text)]
    through = {
        name: value
        for name, value in os.environ.items()
        if re.match("(?i)pip_cert|.*_proxy|ssl_cert_file", name)
    }
    with booted(machine) as inside:
        try:
            online = [word for word in inside if word != "--net"]
            yield from timed(online, downloads, ENVIRONMENT | through)
            yield from timed(inside, (text for text in texts if text not in downloads), ENVIRONMENT)
        finally:
            if stay:
                sys.stdout.write(f"{' '.join(inside)} bash    # Ctrl-C ends the machine\n")
                sys.stdout.flush()
                signal.pause()


def main() -> None:
    given = argparse.ArgumentParser(prog="make first-region", description=__doc__)
    given.add_argument("machine", type=Path, help="a directory that does not exist; it is not removed")
    given.add_argument("wheel", type=Path)
    given.add_argument("--stay", action="store_true", help="leave the machine running at the end")
    named = given.parse_args()
    found = []
    for each in first_region(named.machine.absolute(), named.wheel, stay=named.stay):
        sys.stdout.write(f"{each}\n")
        sys.stdout.flush()
        found.append(each)
    sys.stdout.write("\n".join(map(str, [*found, Timed("all", sum(each.seconds for each in found))])) + "\n")


if __name__ == "__main__":
    main()
