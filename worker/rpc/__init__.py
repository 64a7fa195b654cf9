"""The worker's gRPC surface: translates between messages and the engine's values, and nothing else."""
