"""Makes the credentials of new keys: the same one again for the same request, and no other way to have it again.

Nothing of a credential is stored but its hash. What it is made from is the deployment's secret and the random salt of a
request, which is forgotten after a day, and at once when the request has no id. Where the deployment's secret is kept
in Redis, both lie there for this day; `gateway.extra_key_secret` keeps it elsewhere.
"""

import hmac

from gateway.identity.credentials import SECRET_BYTES, Credential
from gateway.identity.extra_keys import SecretSource
from gateway.identity.idempotency import Attempt

_KEY_ID_BYTES = 8


class Issuer:
    def __init__(self, source: SecretSource) -> None:
        self._source = source

    async def credential(self, method: str, tenant_id: str, request_id: str, attempt: Attempt) -> Credential:
        """Raises UnavailableError without the deployment's secret."""
        secret = await self._source.secret()
        # Length first: no two requests meet.
        context = b"".join(
            len(part).to_bytes(4, "little") + part
            for part in (method.encode(), tenant_id.encode(), request_id.encode(), attempt.salt)
        )
        key_id = hmac.digest(secret, b"radixgate-key-id:" + context, "sha256")[:_KEY_ID_BYTES]
        own = hmac.digest(secret, b"radixgate-key-secret:" + context, "sha512")[:SECRET_BYTES]
        return Credential(key_id.hex(), own.hex())
