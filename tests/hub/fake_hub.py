"""A Hugging Face hub for tests: the endpoints that huggingface_hub asks for a model's files, over plain HTTP."""

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from .toy import COMMIT


@dataclass
class FakeRepository:
    """``files`` by name. ``wrong_sha256`` makes the hub's listing contradict what it serves."""

    files: dict[str, bytes]
    gated: bool = False
    status: int = 200
    wrong_sha256: bool = False
    # File -> lengths after which a connection is cut, one for each download.
    cuts: dict[str, list[int]] = field(default_factory=dict)


class FakeHub:
    """Serves ``repositories`` while the ``with`` block runs and notes every request in ``requests``."""

    def __init__(self) -> None:
        self.repositories: dict[str, FakeRepository] = {}
        self.requests: list[str] = []
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "FakeHub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, files: dict[str, bytes], **behaviour: object) -> FakeRepository:
        self.repositories[name] = FakeRepository(files, **behaviour)
        return self.repositories[name]

    def downloads(self) -> list[str]:
        """The requests for file contents so far; forgets them."""
        found = [request for request in self.requests if request.startswith("GET") and "/resolve/" in request]
        self.requests.clear()
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FakeHub

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.handle_one(send_body=False)

    def do_GET(self) -> None:
        self.handle_one(send_body=True)

    def handle_one(self, send_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.owner.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if listing := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.send_listing(listing[1], listing[2] or "main")
        elif file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.send_file(file[1], file[2], file[3], send_body)
        else:
            self.refuse(404, "")

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def find(self, name: str, revision: str) -> FakeRepository | None:
        repository = self.owner.repositories.get(name)
        if repository is None:
            self.refuse(401, "RepoNotFound")  # what the real hub tells strangers, lest they learn what is private
        elif repository.status != 200:
            self.refuse(repository.status, "")
        elif revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound")
        else:
            return repository
        return None

    def send_listing(self, name: str, revision: str) -> None:
        repository = self.find(name, revision)
        if repository is None:
            return
        siblings = []
        for file, content in repository.files.items():
            digest = "0" * 64 if repository.wrong_sha256 else hashlib.sha256(content).hexdigest()
            lfs = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append({"rfilename": file, "size": len(content), "blobId": "0" * 40, "lfs": lfs})
        body = json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, name: str, revision: str, file: str, send_body: bool) -> None:
        repository = self.find(name, revision)
        if repository is None:
            return
        if repository.gated:
            self.refuse(403, "GatedRepo")
            return
        if file not in repository.files:
            self.refuse(404, "EntryNotFound")
            return
        content = repository.files[file]
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(wanted[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if send_body:
            cuts = repository.cuts.get(file)
            self.wfile.write(content[start : start + cuts.pop(0)] if cuts else content[start:])
            self.wfile.flush()
            self.close_connection = bool(cuts is not None)
