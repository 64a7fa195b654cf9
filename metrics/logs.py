"""Structured logs: events with fields, on standard error. JSON for machines, aligned and coloured on a terminal.

Secrets and what tenants write never get through, whatever a caller passes.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import structlog

MASK = "***"
OMITTED = "<omitted>"

_SECRET_NAME = re.compile(r"(^|_)(authorization|password|passwd|secret|credential|api_key|admin_token|private_key)$")
_CONTENT_NAMES = frozenset({"prompt", "text", "content", "messages", "token_ids", "completion", "output_text"})
_BEARER = re.compile(r"\b(bearer\s+)\S+", re.IGNORECASE)
# Up to the last @: what is no valid URL because of its password must not show it either.
_URL_PASSWORD = re.compile(r"(\w+://[^/\s:@]*:)\S+(@)")
_QUERY_SECRET = re.compile(r"([?&]\w*(?:password|secret|token)=)[^&\s]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """`auto` writes JSON unless standard error is a terminal."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "pretty"] = "auto"


def configure_logs(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send everything that this process logs, through structlog or `logging`, to `stream` in one shape."""
    stream = sys.stderr if stream is None else stream
    pretty = config.format == "pretty" or (config.format == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_rendering(pretty, stream))
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(config.level.upper())


def mask_secrets(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace secrets and tenants' content in an event, at any depth. A structlog processor."""
    return {name: mask_value(name, value) for name, value in event.items()}


def mask_value(name: str, value: Any) -> Any:
    """Return `value` as it may be shown under `name`."""
    lowered = name.lower()
    if _SECRET_NAME.search(lowered) and value not in ("", None, b""):
        return MASK
    if lowered in _CONTENT_NAMES:
        return OMITTED
    if isinstance(value, str):
        masked = _mask_text(value)
        if lowered.endswith("url") and masked == value and "@" in value:
            return MASK + value[value.rindex("@") :]  # a name alone, or what only should be a URL
        return masked
    if isinstance(value, Mapping):
        return {key: mask_value(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask_value("", inner) for inner in value]
    return value


def _mask_text(text: str) -> str:
    masked = _URL_PASSWORD.sub(rf"\1{MASK}\2", _BEARER.sub(rf"\1{MASK}", text))
    return _QUERY_SECRET.sub(rf"\1{MASK}", masked)


def _rendering(pretty: bool, stream: TextIO) -> list[structlog.typing.Processor]:
    clean: list[structlog.typing.Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info if not pretty else structlog.processors.StackInfoRenderer(),
        mask_secrets,
    ]
    if pretty:
        # Plain tracebacks: the default shows the variables of every frame, prompts and secrets included.
        plain = structlog.dev.plain_traceback
        return [*clean, structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    return [*clean, structlog.processors.JSONRenderer(default=str)]
