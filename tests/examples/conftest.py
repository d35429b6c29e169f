"""Examples are plain scripts beside each other: their folder is where they import each other from."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from scripts import Answer, Script

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "examples"))


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Script:
    """An example's main with these words on its command line, in this process."""

    def call(module: ModuleType, *words: object) -> Answer:
        monkeypatch.setattr(sys, "argv", [str(module.__file__), *map(str, words)])
        capsys.readouterr()
        code = 0
        try:
            module.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def repository() -> Path:
    return REPOSITORY
