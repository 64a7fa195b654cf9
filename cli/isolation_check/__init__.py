"""`radixgate isolation-check`: whether tenants of a running deployment are kept apart, tried out from outside."""

from cli.isolation_check.command import command

__all__ = ["command"]
