"""The error of a search that could not be made."""

from __future__ import annotations


class RetrievalError(Exception):
    """No passages could be had: the sample that asked counts as failed, not as wrong."""
