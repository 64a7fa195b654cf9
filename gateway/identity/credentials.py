"""API keys as their owners hold them: `rg_KEYID_SECRET`. How they are made, taken apart and recognised."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

SECRET_BYTES = 32

_KEY_ID = re.compile(r"[0-9a-f]{16}")
_FORM = re.compile(r"rg_([0-9a-f]{16})_([0-9a-f]{64})")
_SPELT = re.compile(r"(rg_[0-9a-f]{16}_)[0-9a-f]+", re.IGNORECASE)


def is_key_id(text: str) -> bool:
    """Whether a key may have this id."""
    return _KEY_ID.fullmatch(text) is not None


def without_secrets(text: str) -> str:
    """Return `text` with the secrets of API keys cut short, which people paste where the id of a key belongs."""
    return _SPELT.sub(r"\1…", text)


@dataclass(frozen=True, slots=True)
class Credential:
    """A key in clear: it is shown to its owner once and never stored or logged."""

    key_id: str
    secret: str

    @classmethod
    def generate(cls) -> "Credential":
        """Return a new credential with 256 bits of randomness in its secret."""
        return cls(secrets.token_hex(8), secrets.token_hex(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> "Credential | None":
        """Return the credential that `text` spells, or None."""
        match = _FORM.fullmatch(text)
        return cls(match[1], match[2]) if match else None

    def __str__(self) -> str:
        return f"rg_{self.key_id}_{self.secret}"

    def __repr__(self) -> str:
        return f"Credential({self.key_id!r}, ...)"

    def secret_hash(self) -> bytes:
        """Return what the store keeps.

        A plain SHA-256: the secret is 256 random bits, so there is nothing to guess that salt or a slow hash would
        have to protect, and a second deployment secret would be one more thing to lose. The key id is hashed along,
        so that a stored hash is worth nothing under another id.
        """
        return hashlib.sha256(f"radixgate-api-key:{self.key_id}:{self.secret}".encode()).digest()

    def matches(self, secret_hash: bytes) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.secret_hash(), secret_hash)
