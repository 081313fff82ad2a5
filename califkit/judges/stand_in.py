"""A server that stands in for a judge: every verdict is well formed, and none means anything.

For rehearsals: what is asked, and how the answer is read, is as with a real judge.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_NUMBERED = re.compile(r"^(\d+)\. ", re.MULTILINE)


@contextlib.contextmanager
def stand_in(host: str = "127.0.0.1") -> Iterator[int]:
    """Serve ``/v1/chat/completions`` at a free port of an address of this machine; the port."""
    server = ThreadingHTTPServer((host, 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def verdict(schema: dict[str, Any], prompt: str) -> Any:
    """A value that a JSON schema allows, drawn by the prompt's hash; a list gets an item for each
    line that the prompt numbers."""
    draw = int(hashlib.sha256(prompt.encode()).hexdigest(), 16)
    if "enum" in schema:
        return schema["enum"][draw % len(schema["enum"])]
    match schema["type"]:
        case "object":
            parts = schema["properties"].items()
            return {name: verdict(part, f"{name} {prompt}") for name, part in parts}
        case "array":
            count = int((_NUMBERED.findall(prompt) or [1])[-1])
            return [verdict(schema["items"], f"{i} {prompt}") for i in range(count)]
        case "boolean":
            return draw % 2 == 0
        case "string":
            return "A stand-in says so."
    low, high = schema.get("minimum", 1), schema.get("maximum", 10)
    return low + draw % (high - low + 1)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name that http.server wants
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        schema = asked["response_format"]["json_schema"]["schema"]
        content = json.dumps(verdict(schema, asked["messages"][-1]["content"]))
        message = {"role": "assistant", "content": content}
        reply = {
            "id": "stand-in",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: a line a request would bury the progress."""
