"""The models that workers say they serve, with everything a gateway needs to speak for them."""

import hashlib
from dataclasses import dataclass
from typing import Final

from gateway.prompts.encoder import PromptEncoder, ThreadedEncoder
from gateway.prompts.threads import PromptThreads
from radixgate.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as requests see it. Workers with equal fingerprints are interchangeable for a request."""

    name: str
    fingerprint: bytes
    context_length: int
    vocab_size: int
    longest_token_bytes: int  # of text; an upper bound
    encoder: ThreadedEncoder
    simulated: bool = False  # there is no model behind it: what it answers means nothing


class Catalogue:
    """Builds each model once, whatever the number of workers that serve it."""

    def __init__(self, threads: PromptThreads) -> None:
        self._threads = threads
        self._models: dict[bytes, ServedModel] = {}

    async def learn(self, model: worker_pb2.GetModelResponse) -> ServedModel:
        """Return the model that a worker describes. Raises ValueError when it cannot be used."""
        fingerprint = _fingerprint(model)
        known = self._models.get(fingerprint)
        if known is None:
            built = await self._build(model, fingerprint)
            # Two workers may have described it at the same time: the first one stays.
            known = self._models.setdefault(fingerprint, built)
        return known

    def forget_except(self, fingerprints: set[bytes]) -> None:
        """Drop the models that no worker serves any more."""
        self._models = {key: model for key, model in self._models.items() if key in fingerprints}

    async def _build(self, model: worker_pb2.GetModelResponse, fingerprint: bytes) -> ServedModel:
        if not model.model or model.context_length < 1 or model.vocab_size < 1:
            raise ValueError("the worker's model has no name, no context or no vocabulary")
        encoder = await self._threads.run(
            "", PromptEncoder, model.tokenizer_json, model.chat_template, dict(model.special_tokens)
        )
        return ServedModel(
            name=model.model,
            fingerprint=fingerprint,
            context_length=model.context_length,
            vocab_size=model.vocab_size,
            longest_token_bytes=encoder.longest_token_bytes,
            encoder=ThreadedEncoder(encoder, self._threads),
            simulated=model.simulated,
        )


_OWN: Final = (
    "worker_id",
    "incarnation",
    "max_sequence_tokens",
    "page_size",
    "name_seed",
    "name_page_size",
    "device_slots",
    "host_slots",
    "store_id",
)


def _fingerprint(model: worker_pb2.GetModelResponse) -> bytes:
    """Digest everything a prepared request depends on; left out is what differs from worker to worker."""
    common = worker_pb2.GetModelResponse()
    common.CopyFrom(model)
    for own in _OWN:
        common.ClearField(own)
    return hashlib.sha256(common.SerializeToString(deterministic=True)).digest()
