"""Traces of requests: what is recorded of them, how they are sampled, and how they reach a collector.

Knows neither gateway nor worker. OpenTelemetry is imported by `tracing.otlp` alone, which is loaded only where an
endpoint is configured.
"""
