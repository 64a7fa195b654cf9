"""The index of pages against a table of who holds what how often."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.index import DEVICE, EXPECTED, HOST, Depth, Holder, PageIndex

NUM_HOLDERS = 3
NAMES = [bytes([i]) * 16 for i in range(8)]
names = st.lists(st.sampled_from(NAMES), unique=True, max_size=6)
places = st.sampled_from([DEVICE, HOST, EXPECTED])
holders = st.integers(0, NUM_HOLDERS - 1)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), holders, places, names),
        st.tuples(st.just("remove"), holders, places, names),
        st.tuples(st.just("replace"), holders, places, names),
        st.tuples(st.just("expect"), holders, st.just(EXPECTED), names),
        st.tuples(st.just("confirm"), holders, st.just(EXPECTED), names),
        st.tuples(st.just("assume"), holders, st.just(DEVICE), names),
        st.tuples(st.just("leave"), holders, places, st.just([])),
    ),
    max_size=25,
)
Change = tuple[str, int, int, list[bytes]]


class Table:
    """How often each place of each holder has each page."""

    def __init__(self) -> None:
        self.counts = [[Counter[bytes]() for _ in range(3)] for _ in range(NUM_HOLDERS)]

    def apply(self, change: Change) -> None:
        kind, number, place, names = change
        counts = self.counts[number]
        if kind == "add":
            counts[place].update(names)
        elif kind == "remove":
            counts[place] -= Counter(names)
        elif kind == "replace":
            counts[place] = Counter(names)
        elif kind == "expect":
            counts[EXPECTED].update(name for name in names if name not in counts[DEVICE])
        elif kind == "confirm":
            counts[EXPECTED] = Counter({name: n for name, n in counts[EXPECTED].items() if name not in names})
        elif kind == "assume":
            counts[DEVICE].update({name: 1 - counts[DEVICE][name] for name in names})
        else:
            self.counts[number] = [Counter() for _ in range(3)]

    def depth(self, number: int, names: Sequence[bytes]) -> Depth:
        device, host, expected = self.counts[number]
        on_device = [name in device or name in expected for name in names]
        held = [there or name in host for there, name in zip(on_device, names, strict=True)]
        return Depth(leading(on_device), leading(held))


def leading(flags: list[bool]) -> int:
    return [*flags, False].index(False)


def apply(index: PageIndex, held: list[Holder], change: Change) -> None:
    kind, number, place, names = change
    holder = held[number]
    if kind == "leave":
        holder.leave()
        held[number] = index.join()
    elif kind == "replace":
        holder.replace(place, Counter(names))
    elif kind in {"add", "remove"}:
        getattr(holder, kind)(place, names)
    else:
        getattr(holder, kind)(names)


@given(changes, st.lists(names, max_size=4))
def test_where_there_is_room_the_index_knows_who_holds_what(steps: list[Change], prompts: list[list[bytes]]) -> None:
    index, table = PageIndex(1000), Table()
    held = [index.join() for _ in range(NUM_HOLDERS)]
    for step in steps:
        apply(index, held, step)
        table.apply(step)
        index.check()
    for prompt in prompts:
        assert index.match(prompt, held) == [table.depth(number, prompt) for number in range(NUM_HOLDERS)]
    for number, holder in enumerate(held):
        assert [holder.num_pages(place) for place in range(3)] == [len(each) for each in table.counts[number]]


@given(changes, st.integers(1, 5), st.lists(names, max_size=4))
@settings(max_examples=100)
def test_where_there_is_little_room_nobody_is_thought_to_have_more_than_it_has(
    steps: list[Change], max_pages: int, prompts: list[list[bytes]]
) -> None:
    forgotten: list[int] = []
    index, table = PageIndex(max_pages, forgotten.append), Table()
    held = [index.join() for _ in range(NUM_HOLDERS)]
    for step in steps:
        apply(index, held, step)
        table.apply(step)
        index.check()
        assert len(index) <= max_pages
    for prompt in prompts:
        for number, depth in enumerate(index.match(prompt, held)):
            known = table.depth(number, prompt)
            assert depth.held <= known.held
            assert depth.device <= known.device


@given(names, names)
def test_of_a_prompt_its_end_is_forgotten_before_its_beginning(first: list[bytes], second: list[bytes]) -> None:
    index = PageIndex(max(1, len(first)))
    holder = index.join()
    holder.add(DEVICE, first)
    holder.add(DEVICE, [name for name in second if name not in first])
    kept = [name for name in first if index.match([name], [holder])[0].device]
    assert kept == first[: len(kept)]


@given(names.filter(lambda found: len(found) > 1), st.data())
def test_what_was_asked_for_last_is_forgotten_last(held: list[bytes], data: st.DataObject) -> None:
    index = PageIndex(len(held))
    holder = index.join()
    holder.add(DEVICE, held)
    wanted = data.draw(st.sampled_from(held))
    index.match([wanted], [holder])
    holder.add(DEVICE, [b"another page...."] + [bytes([200 + i]) * 16 for i in range(len(held) - 2)])
    assert index.match([wanted], [holder])[0].device == 1
