"""What is written by programs is what they would write now, and says all that there is."""

import re
from pathlib import Path

from docs.api_reference import PAGE, descriptors, reasons, reference
from docs.cache.pictures import PICTURES, draw_all
from tests.tools import REPOSITORY

ERROR_NAMES = re.compile(r'reason="([A-Z][A-Z_]+)"')


def test_the_api_reference_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run `make docs`"


def test_every_call_message_and_value_is_in_the_reference() -> None:
    page = reference()
    for name, file in descriptors().items():
        if not name.startswith("radixgate/"):
            continue
        for service in file.service:
            assert all(f"| `{method.name}` |" in page for method in service.method)
        kinds = [*(message.name for message in file.message_type), *(enum.name for enum in file.enum_type)]
        assert all(f"\n### {kind}\n" in page for kind in kinds)
        for message in file.message_type:
            section = page.partition(f"\n### {message.name}\n")[2].partition("\n##")[0]
            assert all(f"| `{field.name}` = {field.number} |" in section for field in message.field)


def test_comments_are_in_the_reference() -> None:
    assert "Keep the k likeliest tokens. Default 0: all." in reference()
    assert "Private: between gateways and workers." in reference()


def test_every_reason_that_the_gateway_names_is_in_the_reference() -> None:
    sources = [path.read_text("utf-8") for path in (REPOSITORY / "gateway").rglob("*.py")]
    named = {name for source in sources for name in ERROR_NAMES.findall(source)}
    known = {reason.name for reason in reasons()}
    assert named <= known
    assert {"QUOTA_EXCEEDED", "TENANT_NOT_FOUND", "TOO_MANY_CALLS"} <= known


def test_pictures_are_what_their_program_draws(tmp_path: Path) -> None:
    for drawn in draw_all(tmp_path):
        committed = REPOSITORY / "docs" / "cache" / drawn.name
        assert drawn.read_bytes() == committed.read_bytes(), f"run `make docs`: {drawn.name}"


def test_every_picture_is_in_the_page() -> None:
    page = (REPOSITORY / "docs" / "cache.md").read_text("utf-8")
    assert all(f"(cache/{name}.svg)" in page for name in PICTURES)
