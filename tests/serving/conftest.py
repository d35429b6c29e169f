"""One tiny finished run, and the app on it without a socket."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unida.data.glyphs import GlyphFolders, write_glyphs

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")

Start = Callable[..., Any]  # a client of a server with these options


@pytest.fixture(scope="session")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    folder = tmp_path_factory.mktemp("glyphs")
    return write_glyphs(folder, shared=3, source_private=1, target_private=2, per_class=4, size=40)


@pytest.fixture(scope="session")
def run(glyphs: GlyphFolders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With words, answered together: everything that the page can show."""
    import unida

    out = tmp_path_factory.mktemp("runs") / "spa"
    options = {"backbone": "test_resnet", "weights": "none", "train": "all", "spa": True, "engine": "torch"}
    sizes = {"image_size": 72, "crop": 64, "batch_size": 4, "steps": 2, "cache": out.parent / "cache"}
    unida.adapt(glyphs.source, glyphs.target, out, **options, **sizes)
    return out


@pytest.fixture(scope="session")
def model(run: Path) -> Any:
    from unida.serving.model import ServedModel

    return ServedModel(run, alone=False)


@pytest.fixture
def start(run: Path, model: Any) -> Iterator[Start]:
    """`start(token=…, rate=0, …)` → a client; the thread that answers runs behind it, or waits for its start."""
    from fastapi.testclient import TestClient

    from unida.serving.app import Service, make_app
    from unida.serving.options import ServeOptions

    services = []

    def begin(token: str | None = None, answers: bool = True, **options: Any) -> TestClient:
        service = Service(ServeOptions(run, **{"rate": 0.0, **options}), model)
        if answers:
            service.batches.start()
        services.append(service)
        gate = make_app(service, token)
        client = TestClient(gate, base_url="http://localhost")
        client.service, client.gate = service, gate  # type: ignore[attr-defined]
        return client

    yield begin
    for service in services:
        service.stop()
