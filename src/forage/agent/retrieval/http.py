"""Passages from a retrieval server that speaks Search-R1's protocol.

`POST {"queries": [...], "topk": k, "return_scores": true}` is answered by
`{"result": [[{"document": {"contents": "\\"Title\\"\\ntext"}, "score": 1.0}, ...]]}`.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from forage.agent.retrieval.errors import RetrievalError
from forage.agent.types import Passage
from forage.errors import UserError

MAX_RESPONSE_BYTES = 32 * 2**20
FIRST_PAUSE_S = 0.1


class _Unavailable(Exception):
    """The server can't answer now; another attempt may succeed."""


class HTTPRetriever:
    """A client with a deadline on every attempt, and a bounded number of attempts."""

    in_process = False

    def __init__(self, url: str, timeout_s: float = 10.0, retries: int = 2) -> None:
        """Name the server; nothing is sent yet.

        Args:
            url: `http://host:port/retrieve`; without a path, `/retrieve` is asked.
            timeout_s: seconds that one attempt may take, from connecting to the last byte.
            retries: further attempts after timeouts, refused connections and statuses 429 and
                5xx, after pauses of 0.1, 0.2, 0.4 ... seconds.

        Raises:
            UserError: if the URL is malformed.
        """
        self._url = url
        self._timeout_s = timeout_s
        self._retries = retries
        self._tls, self._host, self._port, self._path = _parse(url)

    def search(self, query: str, k: int) -> list[Passage]:
        """At most `k` passages, as the server ranks them.

        Raises:
            RetrievalError: if the server can't be reached, refuses, or answers with anything else
                than passages.
        """
        request = {"queries": [query], "topk": k, "return_scores": True}
        body = json.dumps(request).encode()
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                return self._passages(self._post(body), k)
            except _Unavailable as error:
                reason = str(error)
        raise RetrievalError(f"{self._url}: {reason} ({self._retries + 1} attempts)")

    def _post(self, body: bytes) -> bytes:
        """One attempt; `_Unavailable` where another may help."""
        connect = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = connect(self._host, self._port, timeout=self._timeout_s)
        ends = time.monotonic() + self._timeout_s
        reason = ""
        try:
            connection.connect()
            with _hung_up_at(ends, connection.sock):
                content = self._exchange(connection, body)
        except OSError as error:
            reason = str(error) or type(error).__name__
        except http.client.HTTPException as error:
            reason = f"the answer breaks HTTP ({type(error).__name__})"
        finally:
            connection.close()
        if time.monotonic() >= ends:
            raise _Unavailable(f"no answer within {self._timeout_s:g} s")
        if reason:
            raise _Unavailable(reason)
        return content

    def _exchange(self, connection: http.client.HTTPConnection, body: bytes) -> bytes:
        connection.request("POST", self._path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read(MAX_RESPONSE_BYTES + 1)
        if response.status == 429 or response.status >= 500:
            raise _Unavailable(f"status {response.status}")
        if response.status != 200:
            raise RetrievalError(f"{self._url}: status {response.status} {_excerpt(content)}")
        if len(content) > MAX_RESPONSE_BYTES:
            raise RetrievalError(f"{self._url}: the answer exceeds {MAX_RESPONSE_BYTES} bytes")
        if response.length:
            raise _Unavailable("the connection ended within the answer")
        return content

    def _passages(self, content: bytes, k: int) -> list[Passage]:
        try:
            (found,) = json.loads(content)["result"]
            return [_passage(hit["document"]["contents"]) for hit in found[:k]]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise RetrievalError(
                f"{self._url}: the answer is not a list of passages "
                f"({type(error).__name__}: {error}): {_excerpt(content)}"
            ) from None


def _parse(url: str) -> tuple[bool, str, int | None, str]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"retriever URL {url!r} is malformed: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise UserError(f"retriever URL {url!r} must look like http://host:port/retrieve")
    path = parts.path if parts.path.strip("/") else "/retrieve"
    return parts.scheme == "https", host, port, path + (f"?{parts.query}" if parts.query else "")


@contextmanager
def _hung_up_at(ends: float, sock: socket.socket) -> Iterator[None]:
    """Shut `sock` down at that time: a server that trickles never trips the socket's timeout."""
    timer = threading.Timer(max(ends - time.monotonic(), 0.0), _shut_down, [sock])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(sock: socket.socket) -> None:
    # Fails where the exchange ended at the same moment.
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _passage(contents: Any) -> Passage:
    title, _, text = contents.partition("\n")
    return Passage(title.strip().strip('"'), text.strip())


def _excerpt(content: bytes) -> str:
    return repr(content[:80].decode("utf-8", "replace"))
