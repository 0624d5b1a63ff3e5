"""What tests of data sets share: an empty data folder, an empty cache, the real data."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedhpo_gym.data import cache, load_dataset


@pytest.fixture(scope="session")
def derived_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is computed from real data is kept for all tests."""
    return tmp_path_factory.mktemp("user-cache")


@pytest.fixture(autouse=True)
def _fresh(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, derived_once: Path
) -> Iterator[None]:
    """Let nothing that one test loaded or computed from made files answer in another."""
    if "real_data" in request.fixturenames:
        monkeypatch.setenv("XDG_CACHE_HOME", str(derived_once))
        yield
        return
    monkeypatch.setenv("XDG_CACHE_HOME", str(request.getfixturevalue("tmp_path") / "user-cache"))
    load_dataset.cache_clear()
    yield
    load_dataset.cache_clear()


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the loaders look into."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv(cache.ENV_VAR, str(folder))
    return folder


@pytest.fixture
def real_data(shared_datasets: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Load training data from the folder with the real data sets."""
    monkeypatch.setenv(cache.ENV_VAR, str(shared_datasets))
    return shared_datasets


class Publisher:
    """Answers every address with what it has at the moment, instead of the network.

    Attributes:
        content: what it has.
        promised: how many bytes it says it sends, if it says so.
        asked: the addresses.
    """

    def __init__(self) -> None:
        self.content, self.promised, self.asked = b"", "", list[str]()

    def __call__(self, url: str) -> Any:
        self.asked.append(url)
        body: Any = io.BytesIO(self.content)
        body.headers = {"Content-Length": self.promised} if self.promised else {}
        return body


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Publisher:
    """Whoever publishes what is downloaded."""
    found = Publisher()
    monkeypatch.setattr(cache, "open_url", found)
    return found
