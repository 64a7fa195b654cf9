"""The worker: an engine with continuous batching over a radix cache, and the model it drives."""
