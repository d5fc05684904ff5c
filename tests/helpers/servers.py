"""Real servers of files: S3 as moto serves it, HTTP with and without ranges, with faults to order."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


@dataclass
class Web:
    """A server of the files in `folder`. `sent` counts bytes by name; `faults` holds what is to go wrong next."""

    folder: Path
    ranges: bool = True
    sizes: bool = True
    url: str = ""
    sent: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """`503`, `cut` (the connection ends in the middle of the answer) or `stall` (nothing comes), one for each GET."""


@contextlib.contextmanager
def web(folder: Path, **how: Any) -> Iterator[Web]:
    site = Web(folder, **how)
    with _serving(_handler(site)) as port:
        site.url = f"http://{HOST}:{port}"
        yield site


def _handler(site: Web) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = site.folder / self.path.partition("?")[0].lstrip("/")
            if not path.is_file():
                self.send_error(404)
                return
            data, fault = path.read_bytes(), site.faults.pop(0) if body and site.faults else ""
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if site.ranges else None
            if fault == "503":
                self.send_error(503)
                return
            if fault == "stall":
                time.sleep(3)
                return
            self.send_response(206 if asked else 200)
            if asked:
                whole, first, last = len(data), int(asked[1]), int(asked[2] or len(data) - 1)
                data = data[first : last + 1]
                self.send_header("Content-Range", f"bytes {first}-{last}/{whole}")
            if site.ranges:
                self.send_header("Accept-Ranges", "bytes")
            if site.sizes:
                self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.end_headers()
            if body:
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)
                site.sent[path.name] += len(data)

    return Handler


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer((HOST, 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """The endpoint of an S3 server with an empty bucket `models`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "a-secret-key", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=endpoint, **keys).create_bucket(Bucket="models")
        yield endpoint
    finally:
        server.stop()
