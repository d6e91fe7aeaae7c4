"""Starts nova_feasible.py with native threads, which must be chosen before Nova is imported."""

import os


def main() -> None:
    os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "1"
    from nova import monkey_patch

    monkey_patch.patch(backend="threading")
    from features.nova.tests.real import nova_feasible

    nova_feasible.main()


if __name__ == "__main__":
    main()
