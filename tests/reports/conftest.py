"""One tiny run for all tests of reports."""

import shutil
from pathlib import Path

import pytest
from tiny_reports import make_run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Not to be changed: copy it."""
    return make_run(tmp_path_factory.mktemp("reports"))


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))
