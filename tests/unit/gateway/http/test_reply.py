"""How events are written, for whoever reads them."""

import json

from gateway.http.reply import event


def test_an_event_is_one_line_for_everybody() -> None:
    """Also for clients that split text where Unicode has ends of lines."""
    text = "a\nb\rc\r\nd\x0be\x0cf\x1cg\x85h\u2028i\u2029j é 😀"
    written = event({"text": text}).decode()
    assert len(written.splitlines()) == 2
    assert "é 😀" in written
    assert json.loads(written.removeprefix("data: ")) == {"text": text}
