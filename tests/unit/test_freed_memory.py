"""Memory that a worker frees stays with the process: large arrays cause no page faults."""

import subprocess
import sys

import pytest

ROUNDS = 20
WORK = f"""
import resource, sys
import numpy as np
from berth.services import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def batch():
    arrays = [np.ones(10_000) for _ in range(40)]
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // {ROUNDS})
"""


def faults_a_batch(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", WORK, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's")
def test_what_is_freed_is_not_given_back_to_the_system() -> None:
    assert faults_a_batch("kept") < 100  # of 800 pages
