"""Which routing keys a binding's pattern hears, as AMQP's topic exchanges say."""


def matches(pattern: str, key: str) -> bool:
    """AMQP topic matching: `*` is exactly one word, `#` any number of them, none included."""
    if "*" not in pattern and "#" not in pattern:  # most name one key
        return pattern == key
    return _words_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


def _words_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_words_match(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _words_match(pattern[1:], words[1:])
