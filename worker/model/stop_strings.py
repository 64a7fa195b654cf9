"""Finds stop strings in text that arrives in pieces, and holds back what may yet become one.

The stop string that is complete first wins, the longest of those complete at the same character; so the result does
not depend on where the pieces begin and end. One automaton per stop string (Knuth, Morris, Pratt 1977) makes the
work linear in the text, whatever the strings.
"""

from worker.batch import TextDelta


class StopMatcher:
    """Invariant: `_held` is the longest end of the text so far that begins some stop string."""

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._automata = [_Automaton(string) for string in stop]
        self._first = frozenset(string[0] for string in stop)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> TextDelta:
        if self._stopped:
            return TextDelta("", stopped=True)
        if not self._held and self._first.isdisjoint(text):
            return TextDelta(text)
        end = len(self._held)
        text = self._held + text
        for position in range(end, len(text)):
            length = self._advance(text[position])
            if length:
                self._held, self._stopped = "", True
                return TextDelta(text[: position + 1 - length], stopped=True)
        keep = len(text) - max(automaton.matched for automaton in self._automata)
        self._held = text[keep:]
        return TextDelta(text[:keep])

    def flush(self) -> str:
        """The text has ended: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> int:
        """Return the length of the stop string that `character` completes, or 0."""
        longest = 0
        for automaton in self._automata:
            if automaton.advance(character):
                longest = max(longest, automaton.matched)
        return longest


class _Automaton:
    """`matched` is how many of the string's characters the text so far ends with."""

    def __init__(self, string: str) -> None:
        self._string = string
        self._borders = _borders(string)
        self.matched = 0

    def advance(self, character: str) -> bool:
        string, matched = self._string, self.matched
        while matched and string[matched] != character:
            matched = self._borders[matched - 1]
        if string[matched] == character:
            matched += 1
        self.matched = matched
        return matched == len(string)


def _borders(string: str) -> list[int]:
    """For each prefix of `string`, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(string)
    length = 0
    for index in range(1, len(string)):
        while length and string[index] != string[length]:
            length = borders[length - 1]
        if string[index] == string[length]:
            length += 1
        borders[index] = length
    return borders
