"""`radixgate replay`: what a cache of this or that size and policy would have hit on a recorded trace."""

from cli.replay.command import command

__all__ = ["command"]
