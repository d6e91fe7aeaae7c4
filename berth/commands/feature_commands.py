"""Says which feature a command belongs to, also if this berth does not have the feature.

`feature_commands.txt` has a line for each command of a feature: the command, then its feature, and for a
command of a join the joined feature. `scripts/made-pages` writes it, and keeps the lines of features that
this tree does not have. Lines of a feature that no release has any more are removed by hand.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from berth.features import FEATURES, features

TABLE = Path(__file__).with_suffix(".txt")


def missing_features(command: str) -> str:
    """Return why a command is missing if it belongs to features that are not in the list; otherwise ""."""
    owners = recorded().get(command, ())
    missing = [name for name in owners if name not in FEATURES]
    if not missing:
        return ""
    owner = " with ".join(owners)
    return (
        f"`berth {command}` belongs to the feature {owner}, and this berth has no {' and no '.join(missing)}"
    )


def recorded() -> Mapping[str, tuple[str, ...]]:
    """Return the features of each command in the table."""
    rows = (line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines())
    return {command: tuple(owners.split()) for command, owners in rows}


def table() -> str:
    """Return the table of this tree: the commands of listed features, and the recorded ones of all others."""
    found = {name: owners for name, owners in recorded().items() if not {*owners} <= {*FEATURES}}
    found |= dict(_declared())
    return "".join(f"{command}\t{' '.join(owners)}\n" for command, owners in sorted(found.items()))


def _declared() -> Iterator[tuple[str, tuple[str, ...]]]:
    for feature in features():
        for command, module in feature.commands.items():
            join = module.partition(".")[0]
            joined = (join.removeprefix("with_"),) if join.startswith("with_") else ()
            yield command, (feature.name, *joined)
