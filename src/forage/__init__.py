"""Forage trains language-model agents to search."""

__version__ = "0.1.0"
