"""A terminal that is read key by key, and left as it was found, whatever happens in between."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_ESCAPE: Final = "\x1b"
_SEQUENCES: Final = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
    "[5~": "page up", "[6~": "page down", "[Z": "backtab",
}  # fmt: skip
_MOST_BYTES = 1024


def keys_in(text: str) -> list[str]:
    """Return the keys that a terminal sent: characters, and names of those that send a sequence."""
    keys: list[str] = []
    while text:
        if text[0] != _ESCAPE:
            keys.append(text[0])
            text = text[1:]
            continue
        known = next((each for each in _SEQUENCES if text.startswith(each, 1)), None)
        if known is not None:
            keys.append(_SEQUENCES[known])
            text = text[1 + len(known) :]
        else:
            text = _behind_sequence(text)
    return keys


def _behind_sequence(text: str) -> str:
    """Return what follows a sequence that means nothing here. A lone escape is one."""
    if not text.startswith(_ESCAPE + "["):
        return text[1:]
    for index, character in enumerate(text[2:], start=2):
        if "@" <= character <= "~":
            return text[index + 1 :]
    return ""


class Keyboard:
    """Standard input, key by key; or nothing, where it is no terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def read(self, wakeup: int, timeout_s: float) -> list[str] | None:
        """Wait for keys, a byte at `wakeup`, or `timeout_s`; returns the keys, None when the terminal is gone."""
        watched = [wakeup] if self._descriptor is None else [wakeup, self._descriptor]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if wakeup in ready:
            os.read(wakeup, _MOST_BYTES)
        if self._descriptor is None or self._descriptor not in ready:
            return []
        try:
            sent = os.read(self._descriptor, _MOST_BYTES)
        except OSError:
            return None
        return keys_in(sent.decode("utf-8", "replace")) if sent else None


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Take keys one by one, without showing them, for as long as the block lasts. Ctrl-C stays a signal."""
    if not sys.stdin.isatty():
        yield Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
