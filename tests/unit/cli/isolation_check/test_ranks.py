import itertools
import random

import pytest

from cli.isolation_check.ranks import signed_ranks


def exact_p(differences: list[float]) -> float:
    """The two-sided p-value by trying every choice of signs."""
    sizes = sorted(map(abs, differences))
    rank_of = {size: sizes.index(size) + 1 for size in sizes}
    total = sum(rank_of.values()) / 2
    seen = abs(sum(rank_of[abs(value)] for value in differences if value > 0) - total)
    sums = [
        sum(rank for rank, sign in zip(rank_of.values(), signs, strict=True) if sign)
        for signs in itertools.product((0, 1), repeat=len(sizes))
    ]
    return sum(abs(each - total) >= seen - 1e-9 for each in sums) / len(sums)


@pytest.mark.parametrize("seed", range(8))
def test_the_p_value_is_near_the_exact_one(seed: int) -> None:
    random_ = random.Random(seed)
    differences = [random_.gauss(0.4, 1) for _ in range(14)]
    assert signed_ranks(differences).p_value == pytest.approx(exact_p(differences), abs=0.02)


def test_what_lies_on_one_side_alone_is_told_with_certainty() -> None:
    result = signed_ranks([0.1 + number / 100 for number in range(30)])
    assert result.effect == 1.0
    assert result.p_value < 1e-5
    assert signed_ranks([-0.1 - number / 100 for number in range(30)]).effect == -1.0


def test_twenty_pairs_are_enough_for_the_level_of_the_check() -> None:
    assert signed_ranks([1.0 + number for number in range(20)]).p_value < 1e-4
    assert signed_ranks([1.0 + number for number in range(15)]).p_value > 1e-4


def test_what_is_even_tells_nothing() -> None:
    even = [sign * (1 + number) for number in range(15) for sign in (1, -1)]
    result = signed_ranks(even)
    assert result.effect == 0.0
    assert result.p_value > 0.9


def test_pairs_without_a_difference_do_not_count() -> None:
    assert signed_ranks([0.0, 0.0, 1.0]).pairs == 1
    assert signed_ranks([0.0, 0.0]) == signed_ranks([])
    assert signed_ranks([]).p_value == 1.0


def test_ties_share_their_ranks() -> None:
    assert signed_ranks([1.0] * 10 + [-1.0] * 10).effect == 0.0
    assert signed_ranks([2.0] * 30).p_value < 1e-4


def test_false_alarms_are_as_rare_as_the_level_says() -> None:
    random_ = random.Random(5)
    alarms = sum(signed_ranks([random_.gauss(0, 1) for _ in range(40)]).p_value < 0.01 for _ in range(2000))
    assert alarms < 45  # 20 expected
