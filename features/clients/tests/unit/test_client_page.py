"""The examples of features/clients/README.md."""

from pathlib import Path

from tests.support.snippets import snippets

PAGE = Path(__file__).parents[2] / "README.md"


def test_examples_that_publish_raise_an_error_for_a_message_that_no_queue_takes() -> None:
    texts = [one.text for one in snippets(PAGE) if one.language == "python"]
    publishing = [text for text in texts if "mandatory=True" in text and "aio_pika" in text]
    assert publishing and all("on_return_raises=True" in text for text in publishing)
