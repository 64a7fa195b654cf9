"""The OpenAI-compatible HTTP API: its shapes to the gateway's requests and back, over the same pipeline as gRPC."""
