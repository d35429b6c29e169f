"""A tiny pair of folders, one finished run of them, and the command line called as a user would call it."""

import functools
import inspect
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from bad_input import AdaptWords, Options, words_of
from tiny_runs import run_here

from unida.cli import main
from unida.data.glyphs import GlyphFolders, write_glyphs


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[[Sequence[str | Path]], Answer]


@pytest.fixture(autouse=True, scope="session")
def sources_are_read_once() -> Iterator[None]:
    """The command line's help is taken from the options' source code: a quarter of a tiny run, each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "getsource", functools.cache(inspect.getsource))
        yield


@pytest.fixture(scope="session")
def glyphs(tmp_path_factory: pytest.TempPathFactory) -> GlyphFolders:
    """Source: star, house, heart, arrow; target: star, house, heart, key, tree; four pictures of each."""
    folder = tmp_path_factory.mktemp("glyphs")
    return write_glyphs(folder, shared=3, source_private=1, target_private=2, per_class=4, size=40)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Options under which a run takes a second, step by step. One cache: what it holds is no part of any run."""
    return {
        "--train": "tail",
        "--regime": "published",
        "--backbone": "test_resnet.r160_in1k",
        "--weights": "none",
        "--engine": "torch",
        "--image-size": "40",
        "--crop": "32",
        "--steps": "3",
        "--batch-size": "4",
        "--cache": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in this process; a traceback is an exception here, and fails the test."""

    def call(arguments: Sequence[str | Path]) -> Answer:
        # The test runner listens to the root logger; without it, messages go to stderr as they do for a user.
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def shell() -> Callable[..., Answer]:
    """`python -m unida` in a process of its own."""

    def call(arguments: Sequence[str | Path], **environment: str) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "unida", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            timeout=1200,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def finished(glyphs: GlyphFolders, tiny: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with labels of the target for evaluation. Not to be changed: copy it."""
    out = tmp_path_factory.mktemp("runs") / "first"
    options = [word for pair in tiny.items() for word in pair]
    folders = ["--source", str(glyphs.source), "--target", str(glyphs.target), "--out", str(out)]
    assert run_here(["adapt", *folders, *options, "--target-labels", "--eval-every", "2"]) == 0
    return out


@pytest.fixture
def work(tmp_path: Path, glyphs: GlyphFolders, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own with source/ and target/; also the working folder, so that strays are seen."""
    shutil.copytree(glyphs.source, tmp_path / "source")
    shutil.copytree(glyphs.target, tmp_path / "target")
    monkeypatch.chdir(tmp_path)
    # On a busy machine a line of progress may stand before the answer; it is none of these tests' subjects.
    monkeypatch.setattr("unida.support.progress.SECONDS_BETWEEN_LINES", math.inf)
    return tmp_path


@pytest.fixture
def adapt_words(work: Path, tiny: dict[str, str]) -> AdaptWords:
    """`adapt` on the two folders with some options changed."""

    def words(changes: Options) -> list[str]:
        usual = {"--source": work / "source", "--target": work / "target", "--out": work / "runs/deep/one", **tiny}
        return ["adapt", *words_of({**usual, **changes})]

    return words


@pytest.fixture
def copied_run(work: Path, finished: Path) -> Path:
    """A finished run that the test may spoil."""
    return Path(shutil.copytree(finished, work / "run"))
