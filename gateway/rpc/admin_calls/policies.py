"""Policies of tenants between messages and values: their bounds are those of `gateway.policy`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from annotated_types import Interval
from google.protobuf import duration_pb2

from gateway.errors import Violation
from gateway.policy import TenantPolicy, Terms
from gateway.rpc.admin_calls.messages import check_names, seconds_of
from radixgate.v1 import admin_pb2

# Fields of the message by what the value calls them.
_FIELDS = {each.name: each.name.removesuffix("_s") for each in fields(TenantPolicy)}
FIELDS = tuple(_FIELDS.values())
_NAMES = ("models", "adapters")


def read_policy(
    message: admin_pb2.TenantPolicy, path: str, only: Sequence[str] = FIELDS
) -> tuple[dict[str, Any], list[Violation]]:
    """Return the values of the message's fields that `only` names, None or () where unset, and what is wrong with them.

    `path` is where the message stands in its request.
    """
    values: dict[str, Any] = {}
    violations: list[Violation] = []
    for name, field in _FIELDS.items():
        if field not in only:
            continue
        where = f"{path}.{field}"
        if field in _NAMES:
            values[name] = tuple(getattr(message, field))
            violations += check_names(where, values[name])
        elif not message.HasField(field):  # type: ignore[arg-type]
            values[name] = None
        else:
            values[name], faults = _number(getattr(message, field), _INTERVALS[name], where)
            violations += faults
    return values, violations


def policy_message(policy: TenantPolicy | Terms) -> admin_pb2.TenantPolicy:
    """Return a policy as it is set, or as it holds."""
    message = admin_pb2.TenantPolicy()
    for name, field in _FIELDS.items():
        value = getattr(policy, name)
        if field in _NAMES:
            getattr(message, field).extend(sorted(value) if isinstance(value, frozenset) else value)
        elif isinstance(getattr(message, field), duration_pb2.Duration):
            if value is not None:
                getattr(message, field).FromNanoseconds(round(value * 1e9))
        elif value is not None:
            setattr(message, field, value)
    return message


def _number(value: Any, bounds: Interval, where: str) -> tuple[Any, list[Violation]]:
    unit = ""
    if isinstance(value, duration_pb2.Duration):
        unit, value = " s", seconds_of(value)
        if value is None:
            return None, [Violation(where, "is no duration")]
    if _is_within(value, bounds):
        return value, []
    return None, [Violation(where, f"is {value:g}{unit}; must be {_told(bounds)}{unit}")]


def _is_within(value: Any, bounds: Interval) -> bool:
    """Whether a number is within its bounds; not a number is not."""
    low: Any = bounds.ge if bounds.ge is not None else bounds.gt
    high: Any = bounds.le
    return bool((value > low if bounds.ge is None else value >= low) and value <= high)


def _told(bounds: Interval) -> str:
    low = f"at least {bounds.ge}" if bounds.ge is not None else f"more than {bounds.gt}"
    return f"{low} and at most {bounds.le}"


def _interval(hint: Any) -> Interval | None:
    """Return the bounds in `Annotated[number, Interval(...)] | None`."""
    for inner in (hint, *get_args(hint)):
        for metadata in getattr(inner, "__metadata__", ()):
            if isinstance(metadata, Interval):
                return metadata
    return None


_INTERVALS: Mapping[str, Interval] = {
    name: bounds
    for name, hint in get_type_hints(TenantPolicy, include_extras=True).items()
    if (bounds := _interval(hint)) is not None
}
