"""What the serving benchmark sends: reproducible prompts of real English text, cut to exact token counts.

The text is the language reference that ships with every Python (`pydoc_data.topics`), so that a run needs no
download. All choices come from one seed.
"""

import random
from dataclasses import dataclass
from pydoc_data.topics import topics


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: prompt token ids, and how many tokens to generate (always exactly that many)."""

    tenant: str
    token_ids: tuple[int, ...]
    max_new_tokens: int


class TokenText:
    """An endless supply of token ids of running text, cut from one tokenised document.

    Two cuts start at different places, so that unrelated prompts share no long prefix.
    """

    def __init__(self, token_ids: list[int], seed: int) -> None:
        self._token_ids = token_ids
        self._random = random.Random(seed)

    def cut(self, num_tokens: int) -> tuple[int, ...]:
        start = self._random.randrange(len(self._token_ids) - num_tokens)
        return tuple(self._token_ids[start : start + num_tokens])

    def between(self, low: int, high: int) -> tuple[int, ...]:
        return self.cut(self._random.randint(low, high))


def document(num_characters: int = 200_000) -> str:
    """Return the head of the language reference as one text."""
    return "\n\n".join(topics[name] for name in sorted(topics))[:num_characters]


def shared_prefix(
    text: TokenText, tenants: tuple[str, ...], num_requests: int, prefix_tokens: int, max_new_tokens: int
) -> list[Turn]:
    """Requests of several tenants, each tenant's behind one system prompt of its own, with 10 to 60 tokens added.

    Request i belongs to tenant i modulo their number, as a busy gateway would see them: interleaved.
    """
    prefixes = {tenant: text.cut(prefix_tokens) for tenant in tenants}
    turns = []
    for index in range(num_requests):
        tenant = tenants[index % len(tenants)]
        turns.append(Turn(tenant, prefixes[tenant] + text.between(10, 60), max_new_tokens))
    return turns
