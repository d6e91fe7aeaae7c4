"""The hook of automatic evacuations: a command with the host's name, a time limit, and its output."""

from pathlib import Path

import pytest

from features.maintenance.fencing import call_hook
from features.maintenance.messages import HostEvacuation
from tests.support.ids import uid
from tests.support.waiting import until


def a_dead_host(name: str = "host-1") -> HostEvacuation:
    return HostEvacuation(id=uid(1), root=uid(1, "a"), host=name, cell="c1", missing_since=1.0)


@pytest.mark.parametrize(
    ("script", "is_off", "output"),
    [
        ('echo "$1 $2 in $FENCE_CELL"', True, "exit code 0: --force host-1 in c1"),
        ("echo no answer of the BMC >&2; exit 3", False, "exit code 3: no answer of the BMC"),
    ],
)
async def test_only_exit_code_0_means_that_the_host_is_off(
    tmp_path: Path, script: str, is_off: bool, output: str
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\n{script}\n")
    hook.chmod(0o755)
    assert await call_hook((str(hook), "--force"), 30.0, a_dead_host()) == (is_off, output)


async def test_a_hook_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    hook, child = tmp_path / "hook", tmp_path / "child"
    hook.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {child}\nwait\n")
    hook.chmod(0o755)
    assert await call_hook((str(hook),), 1.0, a_dead_host()) == (False, "it did not end within 1 s")
    process = Path("/proc") / child.read_text().strip()

    def has_ended() -> bool:
        return not process.exists() or "\nState:\tZ" in (process / "status").read_text()

    await until(has_ended)


async def test_a_missing_hook_and_a_name_like_an_option_do_not_fence() -> None:
    missing, why = await call_hook(("/nonexistent/hook",), 1.0, a_dead_host())
    assert not missing and "No such file" in why
    refused, why = await call_hook(("/bin/true",), 1.0, a_dead_host("--all"))
    assert not refused and "no name" in why
