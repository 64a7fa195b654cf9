"""What Redis has yet to be told."""

from gateway.quota.accounts import Account
from gateway.quota.ledger import Counts, Ledger, Use

USE = Use("acme", 1, "20261130", "model", "")


def test_an_empty_ledger_has_nothing_to_tell() -> None:
    ledger = Ledger()
    assert not ledger
    ledger.free("acme", "a")
    assert ledger
    ledger.take()
    assert not ledger


def test_usage_of_one_kind_is_added_up() -> None:
    ledger = Ledger()
    for tokens in (5, 7):
        ledger.settle(USE, Counts.of(Account(admitted=True, prompt_tokens=tokens, completion_tokens=1)))
    ledger.settle(None, Counts())
    changes = ledger.take()
    assert changes.usage == {USE: Counts(2, 12, 2)}
    assert changes.settlements == 3


def test_a_lease_that_the_store_never_knew_of_is_not_freed() -> None:
    ledger = Ledger()
    ledger.hold("acme", "a")
    ledger.free("acme", "a")
    ledger.hold("acme", "b")
    changes = ledger.take()
    assert (changes.held, changes.freed) == ({"acme": {"b"}}, {})
    ledger.free("acme", "b")
    assert ledger.take().freed == {"acme": {"b"}}


def test_a_lease_that_was_told_otherwise_is_freed() -> None:
    ledger = Ledger()
    ledger.hold("acme", "a")
    ledger.held_are_told()
    ledger.free("acme", "a")
    changes = ledger.take()
    assert (changes.held, changes.freed) == ({}, {"acme": {"a"}})


def test_it_grows_with_what_there_is_and_not_with_time() -> None:
    ledger = Ledger()
    for i in range(10_000):
        second = 1000 + i // 10
        ledger.forget_before(second - 60)
        ledger.charge("acme", second, 1, 50)
        ledger.hold("acme", f"lease-{i}")
        ledger.free("acme", f"lease-{i}")
        ledger.settle(USE, Counts(1, 40, 10))
    changes = ledger.take()
    assert len(changes.requests) == len(changes.tokens) == 61
    assert not changes.held
    assert changes.usage == {USE: Counts(10_000, 400_000, 100_000)}


def test_what_was_charged_and_given_back_is_not_told() -> None:
    ledger = Ledger()
    ledger.charge("acme", 5, 0, 100)
    ledger.charge("acme", 5, 0, -100)
    assert ledger.take().tokens == {}
