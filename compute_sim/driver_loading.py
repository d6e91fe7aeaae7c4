"""Loads operators' drivers, of hypervisors and of hosts' hardware, from a name `module:Class` and options."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from compute_sim.core.drivers import Driver


class BadDriver(ValueError):
    """Error: a driver's module, Python class or option is wrong; `option` names the option."""

    def __init__(self, why: str, option: str = "") -> None:
        super().__init__(why)
        self.option = option


def load_driver(name: str, options: Mapping[str, Any], *, strict: bool = True) -> Driver:
    """Return a new driver of the class that `name` names as `module:Class`, constructed with `options`.

    With `strict=False`, options may be texts, which are converted to the options' types.
    """
    class_ = driver_class(name)
    if issubclass(class_, msgspec.Struct):
        made: Driver = converted(options, class_, strict=strict)
        return made
    parameters = inspect.signature(class_).parameters
    for option in options.keys() - parameters.keys():
        known = f"there are: {', '.join(parameters)}" if parameters else "there are none"
        raise BadDriver(f"no such option; {known}", option)
    for option, parameter in parameters.items():
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if required and option not in options:
            raise BadDriver("is required", option)
    hints = get_type_hints(class_.__init__)
    given = {
        option: converted(value, hints.get(option, Any), option, strict=strict)
        for option, value in options.items()
    }
    try:
        return class_(**given)  # type: ignore[no-any-return]
    except Exception as problem:  # an operator's code may raise anything
        raise BadDriver(f"cannot be constructed: {type(problem).__name__}: {problem}") from None


def driver_class(name: str) -> type[Any]:
    """Return the Python class of a driver that `module:Class` names."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as problem:  # an operator's code may raise anything
        raise BadDriver(f"cannot import {module!r}: {type(problem).__name__}: {problem}") from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise BadDriver(f"there is no class {path!r} in {module!r}")
    if not callable(getattr(found, "update_provider_tree", None)):
        raise BadDriver(f"{path!r} in {module!r} has no method update_provider_tree, so it is no driver")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise BadDriver(f"{path!r} in {module!r} lacks the method {missing[0]}")
    return found


def converted(value: Any, type_: Any, option: str = "", *, strict: bool = True) -> Any:
    """Convert an option's value, or a mapping of all options, to `type_`; raise BadDriver if impossible.
    Without `strict`, texts such as "2" can become numbers.
    """
    try:
        return msgspec.convert(value, type_, strict=strict)
    except msgspec.ValidationError as problem:
        text, _, where = str(problem).partition(" - at `")
        raise BadDriver(text, option or where.rstrip("`").removeprefix("$.")) from None
