"""HTTP servers in this process, for tests of clients."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def served(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve within the block and yield the address; `respond` writes each response."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # all threads end with the block
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def reply(handler: BaseHTTPRequestHandler, content: bytes = b"", status: int = 200, **headers) -> None:
    """Write a response; header names are spelled with _ instead of -."""
    handler.send_response(status)
    for name, value in ({"Content_Length": len(content)} | headers).items():
        handler.send_header(name.replace("_", "-"), str(value))
    handler.end_headers()
    handler.wfile.write(content)


def body_of(handler: BaseHTTPRequestHandler) -> dict:
    """Return the JSON body of a request."""
    return json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
