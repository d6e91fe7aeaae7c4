"""Starts Nova's processes by forking a process that has imported Nova once.

Importing Nova takes seconds of CPU time and 100 MB of memory a process. Forked processes share both, so
that many nova-compute processes fit on one machine. It runs in the environment of `make nova-test`:

    .venv-nova/bin/python -m deploy.nova_launcher

Requests are JSON lines on standard input, `{"program", "arguments", "environment", "directory", "log"}`;
each is answered with `{"pid": n}`. The end of a process is reported as `{"pid": n, "status": n}`. When
standard input ends, every process is ended, so no process outlives the one that started the launcher.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

STOP_SECONDS = 8.0


def programs() -> dict[str, Callable[[], Any]]:
    """Import the modules of all of Nova's programs, and return the main function of each program."""
    os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "1"  # native threads, Nova's default since 2026.2
    from nova import monkey_patch

    monkey_patch.patch(backend="threading")  # before anything imports eventlet

    import gunicorn.app.wsgiapp
    import nova.api.openstack.compute.routes
    import nova.api.openstack.wsgi_app
    import nova.cmd.compute
    import nova.cmd.conductor
    import nova.cmd.manage
    import nova.cmd.scheduler
    import nova.compute.manager
    import nova.conductor.manager
    import nova.scheduler.manager
    import nova.virt.fake

    from deploy import nova_driver

    # Nova loads drivers from the package nova.virt only.
    sys.modules["nova.virt.sized"] = nova_driver
    return {
        "api": gunicorn.app.wsgiapp.run,
        "compute": nova.cmd.compute.main,
        "conductor": nova.cmd.conductor.main,
        "manage": nova.cmd.manage.main,
        "scheduler": nova.cmd.scheduler.main,
    }


class Launcher:
    def __init__(self, mains: dict[str, Callable[[], Any]]) -> None:
        self._mains = mains
        self._running: set[int] = set()
        self._wakeup, self._waker = os.pipe()
        os.set_blocking(self._waker, False)

    def serve(self) -> None:
        """Start processes as requested on standard input, until standard input ends."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for ignored in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        received = b""
        while True:
            ready, _, _ = select.select([0, self._wakeup], [], [])
            if self._wakeup in ready:
                os.read(self._wakeup, 1024)
                self._reap()
            if 0 in ready:
                if not (data := os.read(0, 65536)):
                    return
                *lines, received = (received + data).split(b"\n")
                for line in lines:
                    report(pid=self._start(json.loads(line)))

    def _start(self, request: dict[str, Any]) -> int:
        if pid := os.fork():
            self._running.add(pid)
            return pid
        status = 1
        try:
            status = self._become(request)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _become(self, request: dict[str, Any]) -> int:
        """Run the requested program in this process, which was forked for it."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.close(self._wakeup)
        os.close(self._waker)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        sys.argv = [f"nova-{request['program']}", *request["arguments"]]
        return int(self._mains[request["program"]]() or 0)

    def _reap(self) -> None:
        for pid in list(self._running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._running.discard(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # workers of a process that was killed
                report(pid=pid, status=os.waitstatus_to_exitcode(status))

    def end_all(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)
            deadline = time.monotonic() + STOP_SECONDS
            while self._running and time.monotonic() < deadline:
                select.select([self._wakeup], [], [], 0.1)
                self._reap()


def report(**values: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(values).encode() + b"\n")


def main() -> None:
    launcher = Launcher(programs())
    gc.collect()
    gc.freeze()  # garbage collection would write to all shared memory pages
    report(pid=0)
    try:
        launcher.serve()
    finally:
        launcher.end_all()


if __name__ == "__main__":
    main()
