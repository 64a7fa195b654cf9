"""`radixgate size`: what a model's KV takes, how much of it fits, and the settings for that. Loads no weights."""

from cli.size.command import command

__all__ = ["command"]
