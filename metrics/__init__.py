"""What RadixGate shows of itself: Prometheus metrics and structured logs. A leaf: imports no other package."""
