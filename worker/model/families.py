"""The families (`model_type`) whose output is compared, token for token, with transformers' own in the tests.

Others are compared once at load, see `worker.model.self_check`.
"""

TESTED = frozenset(
    {
        "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "gemma", "gemma2", "gemma3_text", "gpt_oss",
        "phi3", "granite", "gpt_neox", "gpt2", "opt", "olmo2", "cohere2", "exaone4", "smollm3", "stablelm",
    }
)  # fmt: skip
