"""Stand-ins where an operator has nothing to say: no public prefix, no namespace to remember."""

from collections.abc import Sequence

from gateway.dispatch.fleet import Generation
from gateway.serving.ports import PublicPrefix


class NoPublicPrefixes:
    """Implements PublicPrefixes."""

    def longest(self, model: str, adapter: str, token_ids: Sequence[int]) -> PublicPrefix | None:
        return None


class ForgottenNamespaces:
    """Implements Namespaces."""

    async def used(self, generation: Generation) -> None:
        pass
