"""A local HTTP server that speaks ``/v1/chat/completions`` and plays a script."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Play:
    """One scripted reply: a status with headers and body, after a delay.

    ``drop`` resets the connection instead; ``trickle`` is a wait before every byte of the body.
    """

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    trickle: float = 0.0


@dataclass
class Request:
    """What arrived, and when; names of headers in lower case."""

    body: dict
    headers: dict[str, str]
    time: float


def says(content: str | None, finish: str = "stop", delay: float = 0.0, **message) -> Play:
    """A chat completion with this content."""
    completion = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "served-model",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": content, **message},
            }
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 20,
            "total_tokens": 120,
            "completion_tokens_details": {"reasoning_tokens": 5},
        },
    }
    return Play(json.dumps(completion).encode(), delay=delay)


def score(value: object) -> Play:
    """A well-formed answer to the quality prompt."""
    return says(json.dumps({"reasoning": "Because.", "score": value}))


def error(status: int, message: str = "no", delay: float = 0.0, **fields) -> Play:
    """An HTTP error with a body in the usual form; a field ``headers`` goes into the headers."""
    headers = fields.pop("headers", {})
    body = json.dumps({"error": {"message": message, "type": "x", **fields}}).encode()
    return Play(body, status=status, headers=headers, delay=delay)


@dataclass
class JudgeServer:
    """``script`` is a function of the request, or replies in order (the last one is repeated)."""

    script: Callable[[Request], Play] | Iterable[Play]
    requests: list[Request] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        if not callable(self.script):
            plays = list(self.script)
            self.script = lambda _: plays.pop(0) if len(plays) > 1 else plays[0]

    def answer(self, request: Request) -> Play:
        with self._lock:
            self.requests.append(request)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            play = self.script(request)
        time.sleep(play.delay)
        with self._lock:
            self._now -= 1
        return play


@contextmanager
def serve(script: Callable[[Request], Play] | Iterable[Play]):
    """A running `JudgeServer` on a free port of 127.0.0.1."""
    server = JudgeServer(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            arrived = time.monotonic()
            play = server.answer(
                Request(json.loads(body), {k.lower(): v for k, v in self.headers.items()}, arrived)
            )
            if self.path != "/v1/chat/completions":
                play = error(404, "no such path")
            if play.drop:
                reset = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                self.connection.close()
                self.close_connection = True
                return
            try:
                self.send_response(play.status)
                for name, value in {"content-type": "application/json", **play.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(play.body)))
                self.end_headers()
                self._send(play)
            except OSError:  # the client has given up
                self.close_connection = True

        def _send(self, play):
            if not play.trickle:
                self.wfile.write(play.body)
                return
            for byte in play.body:
                time.sleep(play.trickle)
                self.wfile.write(bytes([byte]))

        def log_message(self, *args):
            pass

        def finish(self):
            try:
                super().finish()
            except (OSError, ValueError):
                pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}/v1"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
