"""Pages for readers, taken apart: fenced blocks with what is said about them, links, headings, inline code."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools import REPOSITORY

_FENCE = re.compile(r"^(`{3,})([\w-]*)[^\n]*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"^<!-- (not run|before): (.+?) -->$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `line` is that of its fence."""

    page: str
    line: int
    kind: str
    text: str
    not_run: str | None  # why not
    before: tuple[str, ...]  # shell lines that readers do not see
    follows: "Block | None"  # the block that it stands directly below

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_output(self) -> bool:
        """Whether this is what the block above it prints."""
        return self.kind == "text" and self.follows is not None and self.follows.kind in {"sh", "python"}


@dataclass(frozen=True, slots=True)
class Page:
    name: str  # its path in the repository
    text: str

    @property
    def path(self) -> Path:
        return REPOSITORY / self.name

    @property
    def prose(self) -> str:
        """The page without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def blocks(self) -> list[Block]:
        return list(_blocks(self))

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def inline_code(self) -> list[str]:
        return _INLINE.findall(self.prose)

    @property
    def anchors(self) -> set[str]:
        """What can stand behind `#`, made from headings as GitHub does; and the anchors that the page sets itself."""
        found: dict[str, int] = {}
        for heading in re.findall(r"^#{1,6} +(.+?) *$", self.prose, re.MULTILINE):
            anchor = anchor_of(heading)
            number = found.get(anchor)
            found[anchor] = 0 if number is None else number + 1
            if number is not None:
                found[f"{anchor}-{number + 1}"] = 0
        return {*found, *re.findall(r'<a (?:id|name)="([^"]+)"', self.prose)}


def anchor_of(heading: str) -> str:
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")


def _blocks(page: Page) -> Iterator[Block]:
    last, end = None, 0
    for match in _FENCE.finditer(page.text):
        between = page.text[end : match.start()].splitlines()
        marks: list[tuple[str, str]] = []
        while between and (mark := _MARK.match(between[-1])):
            marks.insert(0, (mark[1], mark[2]))
            between.pop()
        reasons = [text for kind, text in marks if kind == "not run"]
        last = Block(
            page=page.name,
            line=page.text.count("\n", 0, match.start()) + 1,
            kind=match[2],
            text=match[3],
            not_run=reasons[0] if reasons else None,
            before=tuple(text for kind, text in marks if kind == "before"),
            follows=last if not "".join(between).strip() else None,
        )
        end = match.end()
        yield last


def pages() -> list[Page]:
    """Return every page whose readers use the product, and not its code."""
    found = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    for folder in ("examples", "deploy"):
        found += [path for path in (REPOSITORY / folder).rglob("README.md") if "node_modules" not in path.parts]
    return [Page(str(path.relative_to(REPOSITORY)), path.read_text("utf-8")) for path in sorted(found)]


PAGES = pages()
BLOCKS = [block for page in PAGES for block in page.blocks]
