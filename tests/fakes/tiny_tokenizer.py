"""A small byte-level BPE tokenizer with ChatML markers, built in code: the shape of SmolLM2's, in a few kilobytes."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_SENTENCES = (
    "The quick brown fox jumps over the lazy dog while the farmer counts his sheep.",
    "What is the capital of France? The capital of France is Paris, on the river Seine.",
    "You are a helpful assistant. You are helpful. Answer in one sentence, please.",
    "system user assistant tool: one two three four five six seven eight nine ten",
)


@cache
def tiny_tokenizer_json() -> bytes:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer.to_str().encode()


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(tiny_tokenizer_json().decode())
