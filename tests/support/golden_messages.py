"""The golden bytes of messages: the JSON that was on the wire."""

import re
from pathlib import Path

from berth.features import FEATURES

ROOT = Path(__file__).parents[2]
OF_FEATURES = re.compile(r'"parts":\{"(\w+)"')
# Message or Message.Variant → the JSON that was on the wire, if it has no parts of deleted features
GOLDEN = {
    line.partition(" ")[0]: line.partition(" ")[2].encode()
    for file in (ROOT / "tests/contract/golden.txt", *ROOT.glob("features/**/tests/golden.txt"))
    for line in file.read_text().splitlines()
    if set(FEATURES).issuperset(OF_FEATURES.findall(line))
}
