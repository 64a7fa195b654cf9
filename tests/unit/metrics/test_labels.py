import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.labels import LINGER_S, OTHER, TopLabels, most_leaving
from metrics.work_labels import WorkLabels


def test_the_first_tenants_get_their_own_label_and_the_rest_share_other() -> None:
    labels = TopLabels(2, lambda name: None)
    assert [labels.observe(name, 1, now=0.0) for name in ("a", "b", "c", "d")] == ["a", "b", OTHER, OTHER]
    assert labels.label("c") == OTHER


def test_a_clearly_busier_tenant_takes_the_label_of_the_least_busy() -> None:
    labels = TopLabels(2, lambda name: None)
    labels.observe("a", 100, now=0.0)
    labels.observe("b", 10, now=0.0)
    assert labels.observe("c", 20, now=0.0) == OTHER
    assert labels.observe("c", 1, now=0.0) == "c"
    assert labels.label("b") == OTHER
    assert labels.label("a") == "a"


def test_who_has_lost_its_label_is_forgotten_when_scrapers_have_seen_all_of_it() -> None:
    forgotten: list[str] = []
    labels = TopLabels(1, forgotten.append, linger_s=120.0)
    labels.observe("a", 1, now=0.0)
    labels.observe("b", 3, now=10.0)
    assert labels.label("a") == OTHER
    labels.observe("b", 1, now=129.0)
    assert forgotten == []
    labels.observe("b", 1, now=130.0)
    labels.observe("b", 1, now=500.0)
    assert forgotten == ["a"]


def test_who_gets_its_label_back_in_time_is_not_forgotten() -> None:
    forgotten: list[str] = []
    labels = TopLabels(1, forgotten.append, linger_s=120.0)
    labels.observe("a", 1, now=0.0)
    labels.observe("b", 3, now=10.0)
    assert labels.observe("a", 10, now=20.0) == "a"
    labels.observe("a", 1, now=150.0)
    assert forgotten == ["b"]


def test_while_many_are_leaving_nobody_else_loses_its_label() -> None:
    labels = TopLabels(4, lambda name: None, linger_s=120.0)
    for name in "abcd":
        labels.observe(name, 1, now=0.0)
    assert labels.observe("e", 100, now=0.0) == "e"
    assert labels.observe("f", 100, now=119.0) == OTHER
    assert labels.observe("f", 100, now=120.0) == "f"


def test_two_equally_busy_tenants_do_not_swap_for_ever() -> None:
    demoted: list[str] = []
    labels = TopLabels(1, demoted.append)
    for second in range(1000):
        labels.observe("a", 5, now=float(second))
        labels.observe("b", 5, now=float(second))
    assert demoted == []


def test_a_tenant_that_fell_silent_gives_way() -> None:
    labels = TopLabels(1, lambda name: None, half_life_s=60.0)
    labels.observe("silent", 1_000_000, now=0.0)
    assert labels.observe("busy", 10, now=30.0) == OTHER
    assert labels.observe("busy", 10, now=3600.0) == "busy"


def test_weights_fade_the_same_over_weeks() -> None:
    labels = TopLabels(1, lambda name: None, half_life_s=1.0)
    for second in range(0, 1_000_000, 37):
        labels.observe("steady", 1, now=float(second))
    # The steady one's last unit, at second 999,999, is worth a half one second later.
    assert labels.observe("newcomer", 0.9, now=1_000_000.0) == OTHER
    assert labels.observe("newcomer", 0.2, now=1_000_000.0) == "newcomer"


def test_who_almost_had_a_label_weeks_ago_is_as_far_from_it_as_anybody_now() -> None:
    labels = TopLabels(1, lambda name: None, half_life_s=600.0)
    labels.observe("a", 1_000, now=0.0)
    labels.observe("b", 900, now=0.0)
    labels.observe("a", 10, now=100 * 600.0)
    assert labels.observe("b", 1, now=100 * 600.0) == OTHER


def test_nobody_and_other_take_no_place() -> None:
    labels = TopLabels(1, lambda name: None)
    assert labels.observe("", 1, now=0.0) == ""
    assert labels.observe(OTHER, 1, now=0.0) == OTHER
    assert labels.observe("a", 1, now=0.0) == "a"


def test_at_least_one_label_is_wanted() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        TopLabels(0, lambda name: None)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 1000), st.floats(0, 1e6)), max_size=200))
def test_labels_and_what_is_remembered_stay_bounded(steps: list[tuple[int, int, float]]) -> None:
    forgotten: list[str] = []
    labels, now, given_out = TopLabels(3, forgotten.append), 0.0, set()
    for name, weight, gap in steps:
        now += gap
        label = labels.observe(f"t{name}", weight, now=now)
        assert label in {f"t{name}", OTHER}
        given_out.add(label)
        assert len(labels) <= 3
        assert len(labels._candidates) <= 12
        assert len(labels._leaving) <= most_leaving(3)
        assert not labels._leaving.keys() & labels._labelled.keys()
    still_labelled = {name for name in given_out if name != OTHER and labels.label(name) == name}
    assert len(still_labelled) <= 3
    assert given_out - {OTHER} - still_labelled <= {*forgotten, *labels._leaving}


def test_the_busiest_of_ten_thousand_tenants_end_up_with_the_labels() -> None:
    labels = TopLabels(10, lambda name: None)
    chooser = random.Random(7)
    busy = [f"busy-{i}" for i in range(10)]
    for step in range(30_000):
        name = chooser.choice(busy) if chooser.random() < 0.5 else f"light-{chooser.randrange(10_000)}"
        labels.observe(name, 10, now=step * 0.01)
    assert [labels.label(name) for name in busy] == busy


def test_an_adapter_that_is_called_other_takes_no_place_and_the_series_that_it_shares_stay() -> None:
    now, forgotten = [0.0], list[dict[str, str]]()
    labels = WorkLabels(2, 1, lambda names: forgotten.append(dict(names)), lambda: now[0])
    assert labels.observe("acme", "other", 1) == ("acme", "other")
    assert labels.observe("acme", "sql", 100) == ("acme", "sql")
    assert labels.observe("acme", "json", 1) == ("acme", "other")
    now[0] = 2 * LINGER_S
    labels.observe("acme", "sql", 1)
    assert forgotten == []
