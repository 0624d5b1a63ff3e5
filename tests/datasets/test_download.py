"""Downloads: whole or not at all, verified, and never over plain http."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedhpo_gym.core.errors import DamagedDataError, MissingDataError
from fedhpo_gym.data import cache

CONTENT = b"what the publisher sends" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
URL, REPAIR = "https://example.org/data.bin", "fedhpo-gym download X"


class Server:
    """Answers instead of the network."""

    def __init__(self, content: bytes = CONTENT, promised: int | None = None) -> None:
        self.content, self.promised, self.asked = content, promised, 0

    def __call__(self, url: str) -> Any:
        assert url == URL
        self.asked += 1
        answer: Any = io.BytesIO(self.content)
        length = len(self.content) if self.promised is None else self.promised
        answer.headers = {"Content-Length": str(length)}
        return answer


def fetch(path: Path, sha256: str | None = None, url: str = URL) -> Path:
    with cache.fetched(url, path, sha256, REPAIR):
        return path


def serve(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    monkeypatch.setattr(cache, "open_url", server)
    return server


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_file_is_downloaded_once(
    sha256: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, path = serve(monkeypatch, Server()), tmp_path / "new" / "data.bin"
    for _ in range(2):
        assert fetch(path, sha256).read_bytes() == CONTENT
    assert server.asked == 1
    assert not list(tmp_path.rglob("*.part"))


def test_a_wrong_download_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, Server(CONTENT[:-1] + b"?"))
    with pytest.raises(DamagedDataError, match=f"expected {SHA256}.*{REPAIR}"):
        fetch(tmp_path / "data.bin", SHA256)
    assert not list(tmp_path.iterdir())


def test_a_broken_download_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, Server(CONTENT[:100], promised=len(CONTENT)))
    with pytest.raises(MissingDataError, match=r"100 of 24000 bytes.*put the file at"):
        fetch(tmp_path / "data.bin")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_file_that_changes_later_is_refused(
    sha256: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, Server())
    path = fetch(tmp_path / "data.bin", sha256)
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(DamagedDataError, match=REPAIR):
        fetch(path, sha256)


@pytest.mark.parametrize("url", ["http://localhost/x", "file:///etc/hostname", "ftp://localhost/x"])
def test_only_https_is_opened(url: str, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError):
        fetch(tmp_path / "data.bin", url=url)
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------- computed from files


def test_arrays_are_computed_once_per_state_of_their_files(tmp_path: Path) -> None:
    source, made = tmp_path / "source", []

    def make() -> dict[str, Any]:
        made.append(source.read_text())
        return {"x": np.arange(len(made[-1]))}

    for text in ("one", "one", "three"):
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        arrays = cache.derived("made", [source], make, REPAIR)
        assert len(arrays["x"]) == len(text)
    assert made == ["one", "three"]


def test_equal_arrays_give_equal_files(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.npz", "b.npz")]
    for path in paths:
        cache.write_arrays(path, {"x": np.arange(5), "s": np.array(["é"])})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    again = cache.read_arrays(paths[0], REPAIR)
    assert again["x"].tolist() == [0, 1, 2, 3, 4]
    assert again["s"].tolist() == ["é"]
