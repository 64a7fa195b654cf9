"""What Helm finds in a cluster: Secrets that are there are taken again. The API server is ours and has only these."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CHART, HELMS, NAMESPACE, Manifest, helm_command, of_kind, render

# What Helm writes on objects that it made for a release, and wants to find there again.
OWNED = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {"meta.helm.sh/release-name": "rel", "meta.helm.sh/release-namespace": NAMESPACE},
}


def resources_of(objects: list[Manifest]) -> dict[str, Any]:
    """Return what an API server says of the kinds of these objects, by path."""
    lists: dict[str, Any] = {}
    for version, kind in sorted({(each["apiVersion"], each["kind"]) for each in objects}):
        plural = kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")
        resource = {"name": plural, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]}
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        found = lists.setdefault(path, {"kind": "APIResourceList", "groupVersion": version, "resources": []})
        found["resources"].append(resource)
    groups = [path.split("/")[2:] for path in lists if path.startswith("/apis/")]
    named = [
        {"name": group, "versions": [served], "preferredVersion": served}
        for group, version in groups
        for served in [{"groupVersion": f"{group}/{version}", "version": version}]
    ]
    return {**lists, "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}}


@contextmanager
def cluster(resources: dict[str, Any], secrets: dict[str, dict[str, str]]) -> Iterator[str]:
    """Run what answers discovery and questions for Secrets of one namespace; yields its URL."""
    found = {
        f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}": {
            "apiVersion": "v1", "kind": "Secret", "data": data,
            "metadata": {"name": name, "namespace": NAMESPACE, **OWNED},
        }
        for name, data in secrets.items()
    }  # fmt: skip
    known: dict[str, Any] = {
        "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        **resources,
        **found,
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(known.get(path, missing)).encode()
            self.send_response(200 if path in known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize("helm", HELMS)
def test_secrets_that_the_cluster_has_are_kept_and_a_missing_one_is_made(helm: str) -> None:
    """With another secret of the digests nothing that is cached would be found again."""

    def encoded(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    there = {
        "rel-radixgate-secrets": {"extra-key-secret": encoded("the digests' secret")},
        "rel-radixgate-redis": {"password": encoded("the password")},
    }
    with cluster(resources_of(render(helm)), there) as url:
        done = helm_command(
            helm, "template", "rel", str(CHART), "--namespace", NAMESPACE, "--dry-run=server", "--kube-apiserver", url,
            "--disable-openapi-validation",
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each is not None]
    made = {each["metadata"]["name"]: each["data"] for each in of_kind(objects, "Secret")}
    assert made["rel-radixgate-secrets"]["extra-key-secret"] == encoded("the digests' secret")
    assert len(base64.b64decode(made["rel-radixgate-secrets"]["admin-token"])) == 48
    assert made["rel-radixgate-redis"]["password"] == encoded("the password")
    url_of_redis = base64.b64decode(made["rel-radixgate-redis"]["url"]).decode()
    assert url_of_redis == "redis://:the password@rel-radixgate-redis.inference.svc:6379/0"
