"""The file store's index: sums, and who was used least recently."""

from hypothesis import given
from hypothesis import strategies as st

from hicache.storage.folder_index import Entry, FolderIndex
from hicache.storage.store import PageName

GROUP = b"g" * 16


def page(number: int) -> PageName:
    return PageName(GROUP, number.to_bytes(2, "big") + bytes(14))


def test_the_oldest_is_the_one_with_the_smallest_time() -> None:
    index = FolderIndex()
    for number, used_ns in ((1, 30), (2, 10), (3, 20)):
        index.record(page(number), 5, used_ns)
    assert index.oldest() == page(2)
    index.record(page(2), 5, 40)
    assert index.oldest() == page(3)
    index.forget(page(3))
    assert index.oldest() == page(1)


def test_an_empty_index_has_no_oldest() -> None:
    index = FolderIndex()
    assert index.oldest() is None
    index.record(page(1), 5, 1)
    assert index.forget(page(1))
    assert not index.forget(page(1))
    assert index.oldest() is None


def test_a_page_used_often_does_not_make_the_index_grow() -> None:
    index = FolderIndex()
    index.record(page(1), 5, 0)
    for used_ns in range(1, 20_000):
        index.record(page(2), 5, used_ns)
    assert index.heap_size < 3_000
    assert index.oldest() == page(1)
    index.check()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("record"), st.integers(0, 600), st.integers(0, 99)),
            st.tuples(st.just("forget"), st.integers(0, 600), st.just(0)),
            st.tuples(st.just("forget_shard"), st.integers(0, 2), st.just(0)),
        )
    )
)
def test_the_index_agrees_with_a_dict(calls: list[tuple[str, int, int]]) -> None:
    index, model = FolderIndex(), dict[PageName, Entry]()
    for used_ns, (call, number, num_bytes) in enumerate(calls):
        if call == "record":
            index.record(page(number), num_bytes, used_ns)
            model[page(number)] = Entry(num_bytes, used_ns)
        elif call == "forget":
            assert index.forget(page(number)) == (model.pop(page(number), None) is not None)
        else:
            index.forget_shard((GROUP, number))
            model = {name: entry for name, entry in model.items() if name.page[0] != number}
        index.check()
        assert index.num_bytes == sum(entry.num_bytes for entry in model.values())
        assert index.oldest() == min(model, key=lambda name: model[name].used_ns, default=None)
        assert all(name in index and index[name] == entry for name, entry in model.items())
