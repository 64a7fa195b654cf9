"""Whatever comes, goes, moves and breaks: a link that is up is never dropped while requests run on it."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.roster import LinkState, Roster

FORGET_S = 10.0
WORKERS = ("a", "b", "c")
ADDRESSES = ("x:1", "y:1", "z:1", "w:1")

registries = st.none() | st.dictionaries(st.sampled_from(WORKERS), st.sampled_from(ADDRESSES))
states = st.dictionaries(st.sampled_from(ADDRESSES), st.tuples(st.booleans(), st.integers(0, 2)))


@dataclass(frozen=True)
class Look:
    """What a gateway meets at one moment: who is registered (None: Redis is away), and how links would be."""

    registered: dict[str, str] | None
    links: dict[str, tuple[bool, int]]
    later_s: float


looks = st.lists(st.builds(Look, registries, states, st.floats(0.1, 2 * FORGET_S)), max_size=30)


@given(looks)
def test_links_follow_the_registry_and_are_never_dropped_below_requests(history: list[Look]) -> None:
    roster, links, now = Roster(FORGET_S), set[str](), 0.0
    alone_since: dict[str, float] = {}  # links that were down, and without an entry, ever since
    for look in history:
        now += look.later_s
        seen = {address: look.links.get(address, (False, 0)) for address in links}
        given_links = [LinkState(address, up, in_flight if up else 0) for address, (up, in_flight) in seen.items()]
        if look.registered is None:
            changes = roster.unknown()
            assert not changes.join
            assert not changes.drop
            alone_since.clear()
            continue
        changes = roster.changes(look.registered, given_links, now)
        wanted = set(look.registered.values())
        alone = {address for address, (up, _) in seen.items() if not up and address not in wanted}
        alone_since = {address: alone_since.get(address, now) for address in alone}

        assert set(changes.join) == wanted - links
        for address in changes.drop:
            up, in_flight = seen[address]
            assert address not in wanted
            assert not (up and in_flight)
        for address in changes.retire:
            assert address in links - wanted
        # Nobody is kept for ever: what was alone for long enough goes.
        overdue = {address for address, since in alone_since.items() if now - since >= FORGET_S}
        assert overdue <= set(changes.drop)
        links = (links | set(changes.join)) - set(changes.drop)
        assert wanted <= links
