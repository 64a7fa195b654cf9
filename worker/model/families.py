"""The families (`model_type`) whose output is compared, token for token, with transformers' own in the tests.

Others are compared once at load, see `worker.model.self_check`.
"""

TESTED = frozenset(
    {
        "apertus", "arcee", "biogpt", "codegen", "cohere", "cohere2", "cwm", "deepseek_v2",
        "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe",
        "flex_olmo", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "glm", "glm4",
        "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite",
        "granite_swa", "granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe",
        "hyperclovax", "internlm3", "llama", "minicpm3", "minimax_m2", "ministral", "ministral3",
        "mistral", "mixtral", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt",
        "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss",
        "smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
    }
)  # fmt: skip
