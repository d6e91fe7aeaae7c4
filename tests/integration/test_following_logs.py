"""The example of docs/logs.md, typed as it stands there: one build, followed through all workers."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.berth_processes import ROOT, Up

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
BERTH = '#!/bin/sh\nexec "{python}" -m berth "$@"\n'


def test_one_build_is_followed_by_grep(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "berth"
    command.parent.mkdir()
    command.write_text(BERTH.format(python=sys.executable))
    command.chmod(0o755)
    (example,) = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    loud = {"BERTH_LOG_LEVEL": "debug", "BERTH_LOG_FORMAT": "json"}
    with Up(tmp_path, loud, "--hosts", "4", "--cells", "1", "--build-time", "constant:0") as berth:
        (tmp_path / "berth.log").symlink_to(berth.log_path)
        berth.environment["PATH"] = f"{command.parent}:{berth.environment['PATH']}"
        found = berth.run("bash", "-euc", f'{example}\necho "{{\\"asked\\": \\"$build\\"}}"')
    assert found.returncode == 0, found.stderr
    *lines, asked = map(json.loads, found.stdout.splitlines())
    assert len({line["correlation"] for line in lines}) == 1, "they are one story"
    workers = [line["text"].partition(":")[0].partition(".")[0] for line in lines]
    assert set(workers) >= {"ask", "scheduler", "conductor", "agent"}
    assert all(asked["asked"] in line["build"] for line in lines)
