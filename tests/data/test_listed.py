from pathlib import Path

import pytest
from PIL import Image

from unida.data.domains import open_domains
from unida.data.listed import read_skipped, used_source
from unida.data.options import DataOptions
from unida.runs.summary import write_skipped


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_the_files_are_those_that_a_run_reads(tmp_path: Path, duplicates: str) -> None:
    colours = iter(range(255))
    for name in ("source/a", "source/b", "source/left", "target"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (20, 20), (next(colours), 0, 0)).save(tmp_path / name / f"{number}.png")
    source = tmp_path / "source"
    (source / "b" / "copy.png").write_bytes((source / "a" / "0.png").read_bytes())
    (source / "a" / "copy.png").write_bytes((source / "left" / "0.png").read_bytes())
    (source / "b" / "damaged.png").write_bytes(b"no picture")
    options = DataOptions(
        source=source,
        target=tmp_path / "target",
        duplicates=duplicates,
        source_without="left",
        cache=tmp_path / "cache",
    )
    read, _ = open_domains(options, visible=False)
    write_skipped(tmp_path / "skipped.csv", read.skipped)
    skipped = [path for path, _ in read_skipped(tmp_path / "skipped.csv")]
    assert skipped == [str(source / "b" / "damaged.png")]
    expected = {(file.path, read.classes[label]) for file, label in zip(read.pixels.files, read.labels, strict=True)}
    assert len(expected) == (7 if duplicates == "drop" else 8)
    assert set(used_source(options, read.classes, skipped, cache=None)) == expected
