"""Draws the pictures of docs/cache.md.

python -m docs.cache.pictures [FOLDER [svg|png]]
"""

import sys
from pathlib import Path

from docs.cache.drawing import COMPUTED, DEVICE, HOST, PLAIN, PUBLIC, SOFT, STORAGE, Sheet


def split() -> Sheet:
    """One request after another finds what they share, to the token."""
    sheet = Sheet(118, 44)
    for x, title in ((19, "1. the first request is computed"), (82, "2. the second one leaves the edge after token 5")):
        sheet.text((x, 41), title, bold=True)
    sheet.box((19, 34), (16, 5), "root", colour=PLAIN)
    sheet.arrow((19, 31.5), (19, 26.5))
    sheet.box((19, 23), (34, 7), "You are a helpful assistant. Hi\nslots 0 – 7", colour=DEVICE)
    sheet.text((19, 16), "8 tokens, one node", letters=8, ink=SOFT)

    sheet.arrow((40, 23), (50, 23), tip="-|>")
    sheet.box((82, 34), (16, 5), "root", colour=PLAIN)
    sheet.arrow((82, 31.5), (82, 28.5))
    sheet.box((82, 25), (30, 7), "You are a helpful\nslots 0 – 4, as before", colour=DEVICE)
    sheet.arrow((78, 21.5), (69, 15.5))
    sheet.arrow((86, 21.5), (97, 15.5))
    sheet.box((68, 12), (26, 7), "assistant. Hi\nslots 5 – 7, as before", colour=DEVICE)
    sheet.box((100, 12), (30, 7), "pirate. Tell me a joke\nslots 8 – 13, computed", colour=COMPUTED)
    sheet.text(
        (82, 4.5),
        "the node was split in place: nothing is copied, the 5 tokens that both share are a hit",
        letters=8,
        ink=SOFT,
    )
    return sheet


def namespaces() -> Sheet:
    """Who a caller is decides which tree is walked; a public prefix is the only node that several have."""
    sheet = Sheet(124, 64)
    sheet.text((22, 61), "a namespace", bold=True)
    sheet.text((86, 61), "has a tree of its own", bold=True)
    fields = (
        ("tenant", "acme"),
        ("adapter", "tagger"),
        ("revision of its weights", "b2fc18…"),
        ("cache version", "1796043886"),
    )
    for row, (name, value) in enumerate((*fields, ("scope", "customer-17"))):
        sheet.box((13, 54 - 6 * row), (24, 5), name, letters=8)
        sheet.box((36, 54 - 6 * row), (20, 5), value, letters=8, colour="white")
    sheet.arrow(
        (25, 26.5),
        (25, 20.5),
        "each field with its length, so that no two meet;\nkeyed with the deployment's secret",
        beside=(0, -13),
    )
    sheet.box((25, 17.8), (30, 5), "16 bytes: the extra key", colour="white", bold=True)

    for x, name in ((66, "acme"), (108, "globex")):
        sheet.box((x, 54), (18, 5), f"root of {name}")
        sheet.arrow((x, 51.5), (x, 47.5))
        sheet.box((x, 44), (24, 6.5), "their own prompts", colour=DEVICE)
    sheet.text((87, 49), "never\nmatched\nacross", letters=8, ink=SOFT)

    sheet.box((87, 34), (24, 5), "root of a public prefix", colour=PUBLIC, letters=8)
    sheet.arrow((87, 31.5), (87, 28.5))
    sheet.box(
        (87, 25),
        (46, 6.5),
        "You are the support desk of a bank. …\ncomputed once, for all tenants",
        colour=PUBLIC,
        letters=8,
    )
    sheet.arrow((52, 18.6), (122, 18.6), tip="-", dashed=True)
    sheet.text((57, 20.2), "barrier", letters=8, ink=SOFT)
    for x, name in ((68, "acme"), (106, "globex")):
        sheet.arrow((87 + (x - 87) * 0.5, 21.7), (x, 15.2))
        sheet.box((x, 12.5), (28, 5), f"root of {name} below it", letters=8)
        sheet.arrow((x, 10), (x, 8))
        sheet.box((x, 5), (28, 5.5), "what this tenant asks", colour=DEVICE, letters=8)
    return sheet


def life() -> Sheet:
    """The states of a node and what moves it between tiers."""
    sheet = Sheet(124, 60)
    for y, name, colour in ((47, "device", DEVICE), (27, "host", HOST), (7, "storage", STORAGE)):
        sheet.box((7, y), (12, 10), name, colour=colour, bold=True)
    wide = (22, 10)
    sheet.box((30, 47), wide, "dirty\nonly on the device", colour=DEVICE)
    sheet.box((64, 47), wide, "flying\na mirror is under way", colour=DEVICE)
    sheet.box((100, 47), wide, "settled\non device and host", colour=DEVICE)
    sheet.box((100, 27), wide, "cold\nonly on the host", colour=HOST)
    sheet.box((64, 7), (34, 10), "whole pages, by name\nthey outlive the worker", colour=STORAGE)
    sheet.box((30, 27), wide, "gone", colour="white", dashed=True)

    sheet.arrow((30, 58.5), (30, 52), "computed, committed", beside=(14, 1.2))
    sheet.arrow((41, 47), (53, 47), "mirror", beside=(0, 1.8))
    sheet.arrow((75, 47), (89, 47), "copy is done", beside=(0, 1.8))
    sheet.arrow((96, 42), (96, 32), "evict:\na change\nof pointers", beside=(-6.5, 0))
    sheet.arrow((104, 32), (104, 42), "load back,\nif faster than\nto compute", beside=(8.5, 0))
    sheet.arrow((28, 42), (28, 32), "evicted before its mirror\nis done: lost, counted", beside=(13, 0))
    sheet.arrow((100, 22), (81, 10), "save: once,\nin the background", beside=(-9.5, 2.8))
    sheet.arrow((81, 6), (106, 22), "prefetch: while the\nrequest waits its turn", beside=(11.5, -3.5))
    sheet.arrow((89, 28), (41, 28), "evicted from the host", beside=(0, 1.7))
    return sheet


def prompt() -> Sheet:
    """What of a prompt counts as a hit."""
    sheet = Sheet(124, 30)
    parts = ((0, 44, "device\n400", DEVICE), (44, 22, "host\n200", HOST), (66, 14, "storage\n128", STORAGE))
    for start, width, text, colour in (*parts, (80, 30, "computed\n272", COMPUTED)):
        sheet.box((7 + start + width / 2, 17), (width, 9), text, colour=colour)
    sheet.text((62, 27), "a prompt of 1,000 tokens, when it is admitted", bold=True)
    sheet.arrow(
        (7.5, 10.5),
        (86.5, 10.5),
        "hit: 728 tokens from its beginning without a gap, 72.8%",
        tip="<|-|>",
        beside=(0, -2),
    )
    sheet.arrow((87.5, 10.5), (116.5, 10.5), "at least the last token", tip="<|-|>", beside=(0, -2))
    sheet.text((62, 3), "device + host + storage + computed = prompt, for every request, once", letters=8, ink=SOFT)
    return sheet


PICTURES = {"split": split, "namespaces": namespaces, "life": life, "prompt": prompt}


def draw_all(folder: Path, form: str = "svg") -> list[Path]:
    written = []
    for name, picture in PICTURES.items():
        path = folder / f"{name}.{form}"
        picture().save(path)
        written.append(path)
    return written


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, *sys.argv[2:3])
