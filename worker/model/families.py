"""The families (`model_type`) whose output is compared, token for token, with transformers' own in the tests.

Others are compared once at load, see `worker.model.self_check`.
"""

TESTED = frozenset(
    {
        "apertus", "arcee", "biogpt", "codegen", "cohere", "cohere2", "cwm", "deepseek_v2",
        "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "flex_olmo", "gemma", "gemma2",
        "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj",
        "granite", "granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe",
        "llama", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nanochat", "nemotron",
        "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2",
        "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
        "vaultgemma",
    }
)  # fmt: skip
