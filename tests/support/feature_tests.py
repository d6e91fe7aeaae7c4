"""Modules of the tests of features that tests of all features read."""

from importlib import import_module
from types import ModuleType

from berth.features import features, folder_of, joined_by


def modules_of_tests(path: str) -> list[ModuleType]:
    """Return the module at this path, such as `support.pages`, of the tests of each feature and join that has
    it.
    """
    file = f"{path.replace('.', '/')}.py"
    return [
        import_module(f"features.{feature.name}.{folder}tests.{path}")
        for feature in features()
        for folder in ("", *(f"with_{name}." for name in joined_by(feature)))
        if (folder_of(feature) / folder.replace(".", "/") / "tests" / file).exists()
    ]
