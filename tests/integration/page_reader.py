"""Runs the commands and examples of a page in an empty directory; tests/support/snippets.py describes the
directives in pages.
"""

import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import IO, Self

from bus.clock import monotonic
from tests.support.snippets import ROOT, Snippet, a_command
from tests.support.waiting import DEADLINE

_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_LASTING = re.compile(r"^(?:\w+=\S+ )*berth (?:--\S+ \S+ )*(?:up|run|ironic sim)\b")
_UP = re.compile(r"berth is up")  # printed last: addresses are printed as soon as a server listens
_SERVES = re.compile(r"Ctrl-C stops it|is ready|listens|serves|serving|at http://")


def commands(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if not lines and (not line.strip() or line.startswith("#")):
            continue
        lines.append(line)
        whole = "\n".join(lines)
        read = subprocess.run(["bash", "-n"], input=whole, capture_output=True, text=True, check=False)
        if read.returncode == 0 and not read.stderr and not line.endswith("\\"):
            yield whole
            lines = []
    assert not lines, f"this is not shell: {lines}"


def exit_codes(command: str) -> set[int]:
    """Return the codes with which a command may end, by its comment."""
    found = re.search(r"#.*\bexit (\d)(?: or (\d))?\b", command)
    return {int(each) for each in found.groups() if each} if found else {0}


@dataclass
class _Lasting:
    command: str
    pid: int
    log: Path


@dataclass
class PageReader:
    directory: Path
    services: Mapping[str, str] = field(default_factory=dict)  # what the page calls them: what they are here
    variables: Mapping[str, str] = field(default_factory=dict)  # those that `make services` prints
    tools: Path | None = None
    seconds: float = 2 * DEADLINE
    _instead: dict[str, str] = field(default_factory=dict)
    _lasting: list[_Lasting] = field(default_factory=list)
    _build: str = ""
    printed: str = ""  # by the block before

    def __enter__(self) -> Self:
        (self.directory / "home").mkdir()
        a_command(self.directory / "home")
        tools = [str(self.tools)] if self.tools else []
        places = [*tools, str(self.directory / "home"), str(Path(sys.executable).parent), os.environ["PATH"]]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "PG"))}
        self._said = self.directory / "home" / "codes"
        os.mkfifo(self._said)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=self.directory,
            env={
                **kept, "PATH": ":".join(places), "HOME": str(self.directory / "home"), "NO_COLOR": "1",
                "COLUMNS": "200", "PYTHONPATH": f"{ROOT}:{self.directory}", **self.variables,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )  # fmt: skip
        self._tell(f"exec 3>{self._said}")
        self._codes: IO[str] = self._said.open()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for one in reversed(self._lasting if self._bash.poll() is None else []):
                self._stop(one)
        finally:
            assert self._bash.stdin
            with suppress(BrokenPipeError):  # it was killed
                self._bash.stdin.close()
            self._codes.close()
            self._bash.wait(self.seconds)

    def read(self, snippet: Snippet) -> None:
        if snippet.marks.keys() & {"not run", "tested"}:
            return
        if name := snippet.marks.get("as"):
            file = self.directory / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._here(snippet.text))
        elif snippet.language == "sh":
            self.printed = ""
            for command in commands(snippet.text):
                self._do(command, snippet)
        elif snippet.language == "python":
            file = self.directory / "example.py"
            file.write_text(self._here(snippet.text))
            self.printed = ""
            self._do(f"python -W error {file.name}", snippet)
        elif "prints" in snippet.marks:
            self._compare(snippet)

    def _do(self, command: str, snippet: Snippet) -> None:
        if re.search(r"\bBUILD\b", command.partition("#")[0]) and not self._build:
            self._do("berth boot --vcpus 1 --memory-mb 512 --wait", snippet)
        here = self._here(command)
        if _LASTING.match(command):
            self._start(here, snippet)
            return
        out, err = self.directory / "home" / "out", self.directory / "home" / "err"
        self._tell(f"{{ {here}\n}} </dev/null >{out} 2>{err}; echo $? >&3")
        code = self._answer(f"{snippet}: {command}")
        reply, complained = out.read_text(), err.read_text()
        self.printed += reply + complained
        wanted = exit_codes(command)
        assert code in wanted, (
            f"{snippet}: {command}\nended with {code}, not {wanted}:\n{reply}{complained}\n{self._logs()}"
        )
        if "berth boot" in command and (ids := _ID.findall(reply)):
            self._build = ids[0]

    def _start(self, command: str, snippet: Snippet) -> None:
        if " up" in command:  # one berth in one directory
            for other in [each for each in self._lasting if "berth up" in each.command]:
                self._stop(other)
                self._lasting.remove(other)
        if "ironic sim" in command and "--http" not in command:
            command = command.replace("ironic sim", f"ironic sim --http {self._here('127.0.0.1:6385')}")
        log = self.directory / "home" / f"lasting{len(self._lasting)}-{secrets.token_hex(2)}.log"
        log.touch()
        self._tell(f"{{ exec {_unnamed(command)}\n}} </dev/null >{log} 2>&1 3>&- & echo $! >&3")
        started = _Lasting(command, self._answer(f"{snippet}: {command}"), log)
        self._lasting.append(started)
        ready = _UP if re.search(r"\bup\b", command) else _SERVES
        self._until(lambda: bool(ready.search(log.read_text())), f"{snippet}: {command}", started)

    def kill(self, command: str) -> None:
        """Kill the first of the running commands that begins like this with SIGKILL, as in a crash."""
        found = next(each for each in self._lasting if each.command.startswith(command))
        os.kill(found.pid, signal.SIGKILL)
        self._lasting.remove(found)

    def _stop(self, lasting: _Lasting) -> None:
        self._tell(f"kill {lasting.pid}; wait {lasting.pid}; echo $? >&3")
        code = self._answer(f"end of {lasting.command}")
        assert code in (0, 130, 143), f"{lasting.command} ended with {code}:\n{lasting.log.read_text()}"

    def _until(self, so: Callable[[], bool], what: str, started: _Lasting) -> None:
        deadline = monotonic() + self.seconds
        while not so():
            assert monotonic() < deadline, f"{what} is not there in time:\n{started.log.read_text()}"
            assert Path(f"/proc/{started.pid}").exists() or not Path("/proc").exists(), (
                f"{what} has ended:\n{started.log.read_text()}"
            )
            sleep(0.05)

    def _compare(self, snippet: Snippet) -> None:
        printed = [" ".join(line.split()) for line in self.printed.splitlines()]
        for line in snippet.text.splitlines():
            wanted = ".*".join(re.escape(part.strip()) for part in " ".join(line.split()).split("…"))
            assert any(re.fullmatch(wanted, reply) for reply in printed), (
                f"{snippet} says it prints\n{line}\nbut it printed\n{self.printed}"
            )

    def _here(self, text: str) -> str:
        """The page's words for what is this reader's: services, ports, the build."""
        for reply, meant in self.services.items():
            text = text.replace(reply, meant)
        text = re.sub(r"(?<=127\.0\.0\.1:)\d{4}\b|\b9[0-9]0[01]\b", lambda found: self._free(found[0]), text)
        code, hash_, comment = text.partition(" #")
        return re.sub(r"\bBUILD\b", self._build, code) + hash_ + comment if self._build else text

    def _free(self, port: str) -> str:
        if port not in self._instead:
            self._instead[port] = str(_free_ports())
        return self._instead[port]

    def _tell(self, line: str) -> None:
        assert self._bash.stdin
        self._bash.stdin.write(line + "\n")
        self._bash.stdin.flush()

    def _answer(self, what: str) -> int:
        if not select.select([self._codes], [], [], self.seconds)[0]:
            os.killpg(self._bash.pid, signal.SIGKILL)
            self._bash.wait()
            raise AssertionError(f"{what}: no end in {self.seconds} s\n{self._logs()}")
        return int(self._codes.readline())

    def _logs(self) -> str:
        return "\n".join(f"{one.command}:\n{one.log.read_text()[-3000:]}" for one in self._lasting)


def _unnamed(command: str) -> str:
    """`A=b berth up` after exec needs env."""
    return f"env {command}" if re.match(r"\w+=", command) else command


def _free_ports() -> int:
    while True:
        first = 10000 + secrets.randbelow(20000)
        try:
            for port in range(first, first + 8):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
