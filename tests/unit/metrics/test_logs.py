import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from metrics.logs import LogConfig, configure_logs, mask_value


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def configured(**config: Any) -> io.StringIO:
    stream = io.StringIO()
    configure_logs(LogConfig(**config), stream)
    return stream


def test_an_event_is_one_line_of_json_with_its_fields() -> None:
    stream = configured()
    structlog.get_logger("gateway").info("stream finished", request_id="r1", seconds=0.5)
    (line,) = logged(stream)
    assert line["event"] == "stream finished"
    assert (line["request_id"], line["seconds"], line["level"], line["logger"]) == ("r1", 0.5, "info", "gateway")
    assert line["timestamp"].endswith("Z")


def test_the_standard_library_logs_in_the_same_shape() -> None:
    stream = configured()
    logging.getLogger("grpc").warning("channel %s went away", "c1", extra={"worker": "w0"})
    (line,) = logged(stream)
    assert (line["event"], line["worker"], line["logger"]) == ("channel c1 went away", "w0", "grpc")


def test_an_exception_is_logged_with_its_traceback() -> None:
    stream = configured()
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        structlog.get_logger("worker").exception("step failed")
    (line,) = logged(stream)
    assert "RuntimeError: boom" in line["exception"]
    assert line["level"] == "error"


def test_events_below_the_level_are_dropped() -> None:
    stream = configured(level="warning")
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").warning("loud")
    assert [line["event"] for line in logged(stream)] == ["loud"]


def test_secrets_and_content_never_get_through() -> None:
    stream = configured()
    structlog.get_logger("x").warning(
        "with Bearer abc.def",
        api_key="k1",
        headers={"Authorization": "Bearer k2", "accept": "*"},
        redis="redis://:hunter2@localhost:6379/0",
        prompt="my diary",
        token_ids=[1, 2, 3],
        prompt_tokens=3,
    )
    text = stream.getvalue()
    for secret in ("abc.def", "k1", "k2", "hunter2", "diary", "[1, 2, 3]"):
        assert secret not in text
    (line,) = logged(stream)
    assert line["prompt_tokens"] == 3
    assert line["redis"] == "redis://:***@localhost:6379/0"
    assert line["headers"] == {"Authorization": "***", "accept": "*"}


def test_pretty_logs_are_for_people() -> None:
    stream = configured(format="pretty")
    structlog.get_logger("x").info("ready", port=1234, admin_token="t0p")
    assert "ready" in stream.getvalue()
    assert "port=1234" in stream.getvalue()
    assert "t0p" not in stream.getvalue()


def test_logs_go_to_standard_error_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogConfig())
    structlog.get_logger("x").info("here")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "here" in captured.err
    assert sys.stderr is not None


@pytest.mark.parametrize("name", ["password", "admin_token", "extra_key_secret", "API_KEY", "Authorization"])
def test_values_under_secret_names_are_masked(name: str) -> None:
    assert mask_value(name, "value") == "***"


@pytest.mark.parametrize("name", ["prompt_tokens", "max_step_tokens", "key_id", "tokenizer"])
def test_names_that_only_look_like_secrets_are_shown(name: str) -> None:
    assert mask_value(name, "value") == "value"


def test_an_unset_secret_shows_as_unset() -> None:
    assert mask_value("admin_token", None) is None
    assert mask_value("admin_token", "") == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:pw@host:1/0", "redis://me:***@host:1/0"),
        ("redis://:p@w@host", "redis://:***@host"),
        ("redis://:p/w@host", "redis://:***@host"),
        ("no answer from redis://:pw@host:1", "no answer from redis://:***@host:1"),
        ("redis://host/0?password=pw&db=1", "redis://host/0?password=***&db=1"),
        ("http://host:80/path", "http://host:80/path"),
    ],
)
def test_passwords_in_urls_are_masked_in_any_text(text: str, shown: str) -> None:
    assert mask_value("error", text) == shown


def test_a_name_alone_in_a_url_is_masked_for_it_may_be_a_token() -> None:
    assert mask_value("url", "redis://token@host:1/0") == "***@host:1/0"
    assert mask_value("url", "redis://host:1/0") == "redis://host:1/0"
