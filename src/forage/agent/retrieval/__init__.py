"""Finding passages: an index inside the process, or a server elsewhere; one interface."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from forage.agent.retrieval.errors import RetrievalError
from forage.agent.types import Passage

__all__ = ["RetrievalError", "Retriever", "open_retriever"]


class Retriever(Protocol):
    """Finds the passages that match a query best. Safe to call from several threads."""

    in_process: bool
    """Whether a search runs here, in bounded time, and always finds the same passages."""

    def search(self, query: str, k: int) -> list[Passage]:
        """At most `k` passages, best first.

        Raises:
            RetrievalError: if no result can be had; never an empty list in its place.
        """
        ...


def open_retriever(spec: str) -> Retriever:
    """The retriever behind `spec`: the folder of an index, or the URL of a retrieval server.

    Raises:
        UserError: if there is no such index, or the URL is malformed.
    """
    if "://" in spec:
        from forage.agent.retrieval.http import HTTPRetriever

        return HTTPRetriever(spec)
    from forage.agent.retrieval.bm25 import BM25Index

    return BM25Index.open(Path(spec))
