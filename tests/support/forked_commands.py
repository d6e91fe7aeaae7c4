"""A `berth` for a shell's PATH that begins with the libraries loaded, as `forking` has it for tests."""

import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forking import started

_STUB = """#!{python} -ISE
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as way:
    way.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(way, [len(asked).to_bytes(4, "big")], [1, 2])
    way.sendall(asked)
    answers = way.makefile()
    child = int(answers.readline())
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, _: os.kill(child, number))
    code = int(answers.readline())
sys.exit(code if code >= 0 else 128 - code)
"""


class ForkedCommands:
    """While it is entered, `bin/berth` serves."""

    def __init__(self, directory: Path) -> None:
        self.bin = directory / "bin"
        self._address = str(directory / "forked")
        self._running: set[int] = set()

    def __enter__(self) -> Self:
        self.bin.mkdir()
        stub = self.bin / "berth"
        stub.write_text(_STUB.format(python=os.path.realpath(sys.executable), address=self._address))
        stub.chmod(0o755)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self._address)
        self._listening.listen(64)
        self._serving = threading.Thread(target=self._serve, name="forked commands", daemon=True)
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in tuple(self._running):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._serving.join()

    def _serve(self) -> None:
        while True:
            try:
                way, _ = self._listening.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._run, args=(way,), daemon=True).start()

    def _run(self, way: socket.socket) -> None:
        with way:
            head, files, _, _ = socket.recv_fds(way, 4, 2)
            try:
                asked, length = b"", int.from_bytes(head, "big")
                while len(asked) < length:
                    asked += way.recv(length - len(asked))
                arguments, directory, environment = json.loads(asked)
                with started(arguments, directory, environment, files[0], files[1]) as child:
                    for file in files:
                        os.close(file)
                    files = []
                    self._running.add(child.pid)
                    way.sendall(b"%d\n" % child.pid)
                    child.ends_within(None)
                    self._running.discard(child.pid)
                    way.sendall(b"%d\n" % child.code())
            except BrokenPipeError:
                pass
            finally:
                for file in files:
                    os.close(file)
