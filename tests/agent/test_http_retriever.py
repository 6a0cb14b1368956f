"""A retrieval server at its best and at its worst: a real one, on a real socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forage.agent.retrieval import RetrievalError, open_retriever
from forage.agent.retrieval.http import MAX_RESPONSE_BYTES, HTTPRetriever
from forage.agent.types import Passage
from forage.errors import UserError

FOUND = [
    {"document": {"id": "7", "contents": '"Brno"\nBrno is a city.\nIn Czechia.'}, "score": 2.5},
    {"document": {"contents": "No quotes\ntext"}, "score": 1.0},
    {"document": {"contents": "title only"}, "score": 0.5},
]


class Server(ThreadingHTTPServer):
    """Plays one mood of `moods` per request, the last one for ever; keeps what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.moods = ["well"]
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.leave = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/retrieve"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what these tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, json.loads(body)))
        moods = self.server.moods
        mood = moods.pop(0) if len(moods) > 1 else moods[0]
        getattr(self, mood)()

    def answer(self, status: int, body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def well(self) -> None:
        self.answer(200, json.dumps({"result": [FOUND]}).encode())

    def hang(self) -> None:
        self.server.leave.wait()

    def trickle(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.leave.wait(0.05):
            self.wfile.write(b" ")

    def status_500(self) -> None:
        self.answer(500, b"oops")

    def status_429(self) -> None:
        self.answer(429, b"slow down")

    def status_404(self) -> None:
        self.answer(404, b"no such path")

    def no_json(self) -> None:
        self.answer(200, b"<html>hello</html>")

    def other_json(self) -> None:
        self.answer(200, b'{"result": [[{"document": {"contents": null}}]]}')

    def two_results(self) -> None:
        self.answer(200, json.dumps({"result": [FOUND, FOUND]}).encode())

    def no_http(self) -> None:
        self.wfile.write(b"\x00\xff garbage \r\n\r\n")

    def cut(self) -> None:
        self.answer(200, b'{"result": [[', length=500)

    def hang_up(self) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)

    def flood(self) -> None:
        self.answer(200, b" " * (MAX_RESPONSE_BYTES + 1))

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.leave.set()
        server.shutdown()
        thread.join()


def test_a_search_asks_and_reads_as_search_r1_does(server: Server) -> None:
    retriever = open_retriever(server.url)
    assert not retriever.in_process
    assert retriever.search("which city", 3) == [
        Passage("Brno", "Brno is a city.\nIn Czechia."),
        Passage("No quotes", "text"),
        Passage("title only", ""),
    ]
    asked = {"queries": ["which city"], "topk": 3, "return_scores": True}
    assert server.asked == [("/retrieve", asked)]


def test_a_server_that_returns_too_much_is_cut_to_k(server: Server) -> None:
    assert len(HTTPRetriever(server.url).search("q", 2)) == 2


def test_a_url_without_a_path_asks_retrieve(server: Server) -> None:
    HTTPRetriever(server.url.removesuffix("/retrieve")).search("q", 1)
    HTTPRetriever(server.url + "/v2?index=wiki").search("q", 1)
    assert [path for path, _ in server.asked] == ["/retrieve", "/retrieve/v2?index=wiki"]


@pytest.mark.parametrize("mood", ["hang", "trickle", "status_500", "status_429", "no_http"])
def test_a_passing_fault_costs_another_attempt(server: Server, mood: str) -> None:
    server.moods = [mood, "well"]
    assert len(HTTPRetriever(server.url, timeout_s=0.4, retries=1).search("q", 3)) == 3
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("hang", "no answer within 0.3 s"),
        ("trickle", "no answer within 0.3 s"),
        ("status_500", "status 500"),
        ("cut", "the connection ended within the answer"),
        ("hang_up", "closed connection"),
        ("no_http", "breaks HTTP .BadStatusLine"),
    ],
)
def test_a_lasting_fault_is_an_error_after_the_last_attempt(
    server: Server, mood: str, message: str
) -> None:
    server.moods = [mood]
    with pytest.raises(RetrievalError, match=rf"{message}.*\(2 attempts\)"):
        HTTPRetriever(server.url, timeout_s=0.3, retries=1).search("q", 3)
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("mood", "message"),
    [
        ("status_404", "status 404 'no such path'"),
        ("no_json", "not a list of passages.*<html>"),
        ("other_json", "not a list of passages"),
        ("two_results", "not a list of passages"),
        ("flood", "exceeds"),
    ],
)
def test_an_answer_that_is_none_is_an_error_at_once(
    server: Server, mood: str, message: str
) -> None:
    server.moods = [mood]
    with pytest.raises(RetrievalError, match=message):
        HTTPRetriever(server.url, retries=5).search("q", 3)
    assert len(server.asked) == 1


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(RetrievalError, match="refused.*1 attempts"):
        HTTPRetriever(f"http://127.0.0.1:{port}", retries=0).search("q", 1)


@pytest.mark.parametrize(
    "url", ["ftp://host/retrieve", "http://", "http://host:port", "http://[::1"]
)
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="retriever URL"):
        open_retriever(url)
