"""A worker that does nothing until its standard input ends; with `--fail` it exits with code 3."""

import os
import sys

if __name__ == "__main__":
    if "--fail" in sys.argv:
        sys.exit(3)
    os.read(0, 1)
