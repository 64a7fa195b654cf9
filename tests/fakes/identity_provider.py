"""An identity provider for tests: signs tokens, and publishes its keys in a file or over HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "radixgate"


@cache
def private_key(algorithm: str, name: str = "first") -> Any:
    """Return a key for an algorithm, the same for the same name."""
    if algorithm.startswith(("RS", "PS")):
        return rsa.generate_private_key(65537, 2048)
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curves: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    return ec.generate_private_key(curves[algorithm])


def public_jwk(key: Any, **members: Any) -> dict[str, Any]:
    """Return the public half of a private key as a JSON Web Key."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        jwk = RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        jwk = ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        jwk = OKPAlgorithm.to_jwk(public, as_dict=True)
    return {name: value for name, value in jwk.items() if name != "key_ops"} | members


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def token(key: Any = None, algorithm: str = "ES256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    """Return a token that is good unless told otherwise; a claim of None is left out."""
    now = time.time()
    said = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 86_400, "sub": "somebody", "tenant": "acme", **claims}
    said = {name: value for name, value in said.items() if value is not None}
    names = {name: value for name, value in {"kid": "first", **(header or {})}.items() if value is not None}
    # As JSON and not through PyJWT's own checks: bad tokens are wanted, too.
    return jwt.PyJWS().encode(json.dumps(said).encode(), key or private_key(algorithm), algorithm, names)


class KeyServer:
    """Publishes a document over HTTP; what it answers can be changed."""

    def __init__(self) -> None:
        self.document = key_set()
        self.status = 200
        self.location = ""
        self.requests = 0
        self.url = ""


@contextmanager
def key_server() -> Iterator[KeyServer]:
    published = KeyServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            published.requests += 1
            self.send_response(published.status)
            if published.location:
                self.send_header("Location", published.location)
            self.end_headers()
            self.wfile.write(published.document)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    published.url = f"http://127.0.0.1:{server.server_address[1]}/keys"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield published
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
