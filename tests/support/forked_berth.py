"""A command `berth` for shells, whose processes are forked from a process that has imported berth before."""

import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.forked_commands import PROCESSES, command_in

_MOST = 1 << 17  # bytes of a request: arguments, directory, environment
_CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
words = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [words], [0, 1, 2])
process = int(server.recv(32))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
sys.exit(int(server.recv(32) or 137))
"""


@contextmanager
def forked_berth(folder: Path) -> Iterator[None]:
    """Make a command `berth` in a folder of the search path, which works until the end of the block."""
    with TemporaryDirectory(prefix="berth-") as directory:  # a socket's path has at most 107 bytes
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(address := f"{directory}/socket")
        listener.listen(8)
        server = PROCESSES.Process(target=_serve, args=(listener,))
        server.start()
        listener.close()
        command = folder / "berth"
        command.write_text(_CLIENT.format(python=sys.executable, address=address))
        command.chmod(0o755)
        try:
            yield
        finally:
            server.terminate()
            server.join()


def _serve(listener: socket.socket) -> None:
    """Fork a process for each connection, which forks the command, sends its id, and then its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    while parent.sentinel not in wait([listener, parent.sentinel]):  # ends with the tests
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, streams, *_ = socket.recv_fds(connection, _MOST, 3)
        if not (process := os.fork()):
            connection.close()
            arguments, directory, environment = json.loads(request)
            sys.path.insert(0, directory)
            command_in(arguments, Path(directory), environment, streams)
        for stream in streams:
            os.close(stream)
        connection.send(str(process).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        connection.send(str(code if code >= 0 else 128 - code).encode())
        os._exit(0)
