"""The index of public prefixes against looking at each of them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.control.prefix_index import PrefixIndex, RegisteredPrefix
from hicache.keys import pack_tokens

# Few tokens, so that prefixes lie inside each other; among them some whose bytes sort apart from their values.
tokens = st.lists(st.sampled_from([0, 1, 2, 255, 256, 65_536]), min_size=1, max_size=9)
groups = st.tuples(st.sampled_from(["m1", "m2"]), st.sampled_from(["", "poet"]))


def registered(number: int, group: tuple[str, str], token_ids: list[int]) -> RegisteredPrefix:
    return RegisteredPrefix(f"p{number}", "", *group, number, pack_tokens(token_ids), 0.0)


@settings(max_examples=300)
@given(
    prefixes=st.lists(st.tuples(groups, tokens), max_size=30, unique_by=lambda each: (each[0], tuple(each[1]))),
    prompts=st.lists(st.tuples(groups, tokens), min_size=1, max_size=10),
)
def test_the_longest_prefix_that_the_prompt_goes_beyond_is_found(
    prefixes: list[tuple[tuple[str, str], list[int]]], prompts: list[tuple[tuple[str, str], list[int]]]
) -> None:
    index = PrefixIndex([registered(i, group, token_ids) for i, (group, token_ids) in enumerate(prefixes)])
    for group, prompt in prompts:
        fitting = [
            (len(token_ids), f"p{i}")
            for i, (of, token_ids) in enumerate(prefixes)
            if of == group and len(token_ids) < len(prompt) and prompt[: len(token_ids)] == token_ids
        ]
        found = index.longest(*group, prompt)
        assert (None if found is None else (found.num_tokens, found.prefix_id)) == max(fitting, default=None)


def test_an_index_without_prefixes_finds_none() -> None:
    assert PrefixIndex().longest("m", "", [1, 2, 3]) is None


def test_a_prompt_that_is_a_prefix_or_shorter_has_nothing_of_its_own() -> None:
    index = PrefixIndex([registered(0, ("m", ""), [5, 6, 7])])
    assert index.longest("m", "", [5, 6, 7]) is None
    assert index.longest("m", "", [5]) is None
    assert index.longest("m", "", [5, 6, 7, 8]) is not None
