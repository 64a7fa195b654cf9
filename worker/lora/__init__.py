"""LoRA adapters: what a PEFT folder holds, and weights of many adapters where forward passes find them."""
