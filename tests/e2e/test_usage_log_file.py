"""A gateway's process and the file of its usage log: opened anew on SIGHUP, written to its end on SIGTERM."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import wait_until

pytestmark = pytest.mark.e2e


def test_sighup_opens_the_usage_log_anew_and_ends_nothing(redis_url: str, tmp_path: Path) -> None:
    log, ready = tmp_path / "usage.jsonl", tmp_path / "ready.json"
    settings = {
        "gateway.listen": "127.0.0.1:0",
        "gateway.http.listen": "127.0.0.1:0",
        "gateway.metrics_listen": "127.0.0.1:0",
        "gateway.workers": '["127.0.0.1:9"]',
        "gateway.usage_log": str(log),
        "redis.url": redis_url,
    }
    command = [sys.executable, "-m", "cli", "gateway", "--ready-file", str(ready)]
    command += [f"--set={name}={value}" for name, value in settings.items()]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as gateway:
        try:
            wait_until(ready.exists, timeout_s=60, what="the gateway is ready")
            assert json.loads(ready.read_text())["metrics"].endswith("/metrics")
            assert log.read_text() == ""
            log.rename(tmp_path / "usage.jsonl.1")
            os.kill(gateway.pid, signal.SIGHUP)
            wait_until(log.exists, timeout_s=30, what="the usage log is opened anew")
            assert gateway.poll() is None
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(60) == 0
        finally:
            gateway.kill()
