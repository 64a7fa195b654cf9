"""Model execution: loading, forward passes over slot pools, sampling and text."""
