"""Whatever callers send as `traceparent`, what is taken from it is well-formed, or nothing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracing.traceparent import SpanContext, parse_traceparent, traceparent_in

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (GOOD, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # flags of later days
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"01-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
        (f"01-{TRACE}-{SPAN}-01-", True),
    ],
)
def test_a_valid_one_names_its_span(value: str, sampled: bool) -> None:
    assert parse_traceparent(value) == SpanContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        "-",
        "---",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-001",
        f"00-{TRACE}-{SPAN}-01-more",  # version 00 ends there
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",  # no version
        f"FF-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}-+1",
        f"00_{TRACE}_{SPAN}_01",
        f" {GOOD}",
        f"{GOOD} ",
        f"{GOOD}\n",
        f"{GOOD}\r\nx-tenant: other",
        f"{GOOD},{GOOD}",
        f"00-{TRACE[:-1]}\x00-{SPAN}-01",
        GOOD.replace("0", "٠"),  # a digit, to some
        GOOD.replace("a", "а"),  # Cyrillic
        GOOD.replace("-", "–"),
        f"cc-{TRACE}-{SPAN}-01-{'x' * 10_000}",
        f"cc-{TRACE}-{SPAN}-01-\u2028",
        "00-" + "f" * 1_000_000,
    ],
)
def test_a_hostile_one_names_nothing(value: str) -> None:
    assert parse_traceparent(value) is None


@given(st.text(max_size=80) | st.text("0123456789abcdef-", min_size=50, max_size=60))
def test_whatever_is_sent_nothing_else_comes_through(value: str) -> None:
    found = parse_traceparent(value)
    assert found is None or re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", found.traceparent)


def test_two_of_them_name_nothing() -> None:
    one = ("traceparent", GOOD)
    assert traceparent_in([("host", "x"), one]) == SpanContext(TRACE, SPAN)
    assert traceparent_in([one, one]) is None
    assert traceparent_in([("traceparent", GOOD.encode())]) is None
    assert traceparent_in([]) is None


def test_what_is_written_reads_the_same() -> None:
    for context in (SpanContext(TRACE, SPAN), SpanContext(TRACE, SPAN, sampled=False)):
        assert parse_traceparent(context.traceparent) == context
