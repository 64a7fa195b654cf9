"""docs/metrics.md is what the code of the metrics says now, and all of it."""

from docs.metrics_notes import NOTES, PARTS
from docs.metrics_reference import PAGE, reference
from metrics.bounds import Bounds
from metrics.catalogue import catalogue


def test_the_page_of_metrics_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == reference(), "run `make docs`"


def test_every_family_has_a_row_with_its_labels_and_its_meaning() -> None:
    page = reference()
    for family in catalogue():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{family.name}` |")]
        assert f"| {family.kind} |" in row
        assert family.help in row
        assert all(f"`{label}`" in row for label in family.labels)


def test_parts_and_notes_speak_of_nothing_that_is_not_there() -> None:
    known = {family.name for family in catalogue()}
    placed = [name for groups in PARTS.values() for names in groups.values() for name in names]
    assert len(placed) == len(set(placed))
    assert set(placed) <= known
    assert set(NOTES) <= known


def test_the_cap_in_the_page_is_the_computed_one() -> None:
    most = Bounds().most_samples(family for family in catalogue() if family.process == "worker")
    assert f"| worker |  | {most:,} |" in reference()
