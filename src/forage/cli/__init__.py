"""The `forage` command. Nothing heavy is imported before a command needs it."""

from forage.cli.main import main

__all__ = ["main"]
