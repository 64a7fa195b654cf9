"""`radixgate serve` by TLS: it becomes ready, and clients that trust its authority are served."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from radixgate.v1 import inference_pb2, inference_pb2_grpc
from tests.e2e.conftest import ARGUMENTS
from tests.fakes.authority import Authority
from tests.processes import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(300)]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cli", *arguments]


def test_a_deployment_serves_by_tls_from_start_to_end(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.server().write(tmp_path)
    ca, ready_file = authority.write(tmp_path), tmp_path / "ready.json"
    tls = ["--set", f"gateway.tls.cert_file={certificate}", "--set", f"gateway.tls.key_file={key}"]
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "TMPDIR": str(tmp_path)}
    log = (tmp_path / "stack.log").open("wb")
    serve = command("serve", "--ready-file", str(ready_file), *ARGUMENTS, *tls)
    process = subprocess.Popen(serve, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        wait_until(lambda: ready_file.exists() or process.poll() is not None, timeout_s=240, what="stack ready")
        assert process.poll() is None, (tmp_path / "stack.log").read_text()
        target = json.loads(ready_file.read_text())["grpc"]
        # The token is where `serve` leaves it for commands of the same user.
        for arguments in (["tenant", "create", "acme"], ["key", "create", "acme"]):
            asked = command(*arguments, "--target", target, "--tls-ca", ca, "--json")
            done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
        secret = json.loads(done.stdout)["secret"]
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(authority.pem)) as channel:
            request = inference_pb2.GenerateRequest(
                text="Hello", sampling=inference_pb2.SamplingParams(max_new_tokens=3)
            )
            answers = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
                request, metadata=(("authorization", f"Bearer {secret}"),), timeout=60
            )
            assert sum(len(answer.token_ids) for answer in answers) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def test_a_demo_by_tls_is_refused_with_what_to_do(tmp_path: Path) -> None:
    certificate, key = Authority().server().write(tmp_path)
    tls = ["--set", f"gateway.tls.cert_file={certificate}", "--set", f"gateway.tls.key_file={key}"]
    done = subprocess.run(command("serve", "--demo", *tls), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "leave gateway.tls out" in done.stderr
