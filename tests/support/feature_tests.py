"""Modules of the tests of features that tests of all features read."""

from importlib import import_module
from types import ModuleType

from berth.features import features, folder_of


def modules_of_tests(path: str) -> list[ModuleType]:
    """Return the module at this path, such as `support.pages`, of the tests of each feature that has it."""
    return [
        import_module(f"features.{feature.name}.tests.{path}")
        for feature in features()
        if (folder_of(feature) / "tests").joinpath(*path.split(".")).with_suffix(".py").exists()
    ]
