"""Writes the tables of `docs/models.md` from what the tests really compare and see refused.

python -m tests.integration.model_tables
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.integration.test_model_refusal import REFUSED
from tests.integration.tiny_models import FAMILIES, tiny
from worker.model import plain_decoder
from worker.model.probe import probe, text_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
_BEGIN, _END = "<!-- {}: written by tests/integration/model_tables.py -->\n", "<!-- end of {} -->\n"


def tables() -> dict[str, str]:
    """Return each table by its name, in Markdown."""
    return {"compared": "".join(_compared()), "refused": "".join(_refused())}


def within(page: str, name: str) -> str:
    """Return the table called `name` as it stands in `page`."""
    return page.split(_BEGIN.format(name))[1].split(_END.format(name), maxsplit=1)[0]


def _compared() -> Iterator[str]:
    yield "| family (`model_type`) | runs in native code | also compared with |\n|---|---|---|\n"
    variants = defaultdict[str, list[str]](list)
    for name, (family, _) in FAMILIES.items():
        variants[family].append(name)
    for family in sorted(variants):
        native = "yes" if family in plain_decoder.FAMILIES else ""
        features = dict.fromkeys(feature for name in variants[family] for feature in _features(name))
        yield f"| `{family}` | {native} | {', '.join(features)} |\n"


def _features(name: str) -> Iterator[str]:
    model = tiny(name)
    shapes = [layer.shape for layer in probe(model)]
    windows = {shape.window for shape in shapes}
    if windows != {None}:
        yield "windows in some layers" if None in windows else "windows"
    if any(shape.softcap for shape in shapes):
        yield "soft caps"
    if any(shape.has_sinks for shape in shapes):
        yield "sinks"
    if any(shape.key_dim != shape.value_dim for shape in shapes):
        yield "keys and values of different sizes"
    if len({(shape.kv_heads, shape.key_dim) for shape in shapes}) > 1:
        yield "heads that differ by layer"
    rope = getattr(text_config(model), "rope_parameters", None) or {}
    rope_type = rope.get("rope_type", "default")
    if rope_type != "default":
        yield f"`{rope_type}` rotation"


def _refused() -> Iterator[str]:
    yield "| the message says | families |\n|---|---|\n"
    families = defaultdict[str, list[str]](list)
    for family, feature in REFUSED.items():
        families[feature].append(f"`{family}`")
    for feature in sorted(families):
        yield f"| {feature} | {', '.join(sorted(families[feature]))} |\n"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, table in tables().items():
        page = page.replace(_BEGIN.format(name) + within(page, name), _BEGIN.format(name) + table)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
