"""What a page says that commands print, and what they do print."""

import re

_TIME = re.compile(r"\d[\d,]*(?:\.\d+)?(?=\s?(?:s|ms|µs)\b)")


def matches(expected: str, output: str) -> bool:
    """Whether `output` is what a page shows.

    `…` stands for anything, a time for any time of that unit; how wide columns are does not count, nor do empty lines.
    """
    parts = ["".join(_time_or_text(part)) for part in _plain(expected).split("…")]
    return re.fullmatch(r".*?".join(part.strip() and part for part in parts), _plain(output), re.DOTALL) is not None


def _time_or_text(text: str) -> list[str]:
    pieces, end = [], 0
    for time in _TIME.finditer(text):
        pieces += [re.escape(text[end : time.start()]), r"\d[\d,]*(?:\.\d+)?"]
        end = time.end()
    return [*pieces, re.escape(text[end:])]


def _plain(text: str) -> str:
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def commands_and_output(session: str) -> list[tuple[str, str]]:
    """Take a `console` block apart: each command after `$ `, with the lines below it."""
    parts = re.split(r"^\$ ", session, flags=re.MULTILINE)
    assert not parts[0].strip(), "a console block begins with `$ `"
    found = []
    for part in parts[1:]:
        command, _, output = re.sub(r"\\\n", "\0", part).partition("\n")
        found.append((command.replace("\0", "\\\n"), output))
    return found
