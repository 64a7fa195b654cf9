"""A whole model in milliseconds: a tiny Llama with random weights behind the tiny tokenizer, loaded as any other."""

import json
from pathlib import Path

from tests.fakes.tiny_tokenizer import CHATML, CONTROL_TOKENS, SPECIAL_TOKENS, tiny_tokenizer, tiny_tokenizer_json
from tests.integration.tiny_models import tiny_model
from worker.config import ModelConfig
from worker.model.loading import LoadedModel, load_model
from worker.model.progress import SilentProgress

EOS = CONTROL_TOKENS.index("<|im_end|>")


def tiny_llama(folder: Path, context_length: int = 2048) -> LoadedModel:
    """Save the model to `folder` and load it, in fp32."""
    model = tiny_model(
        "llama",
        vocab_size=tiny_tokenizer().get_vocab_size(),
        max_position_embeddings=context_length,
        initializer_range=0.2,  # spread, and not certain of anything
        eos_token_id=EOS,
    )
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL_TOKENS | {"chat_template": CHATML}))
    return load_model(ModelConfig(model=str(folder), threads=1, device="cpu", dtype="fp32"), SilentProgress())
