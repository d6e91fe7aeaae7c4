"""The golden bytes of messages: the JSON that was on the wire."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Message or Message.Variant → the JSON that was on the wire
GOLDEN = {
    line.partition(" ")[0]: line.partition(" ")[2].encode()
    for file in (ROOT / "tests/contract/golden.txt", *ROOT.glob("features/**/tests/golden.txt"))
    for line in file.read_text().splitlines()
}
