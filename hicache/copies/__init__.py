"""Copies between device and host: what a transfer promises, who makes the copies, and what they cost."""
