"""Classes that are left out of a domain: as if their images had never been there."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from unida.data.domains import Source, Target, open_domains
from unida.data.options import DataOptions
from unida.data.pairs import benchmark_pair
from unida.data.settings import LabelSets
from unida.errors import UserError


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    for colour, name in enumerate(("source/cup", "source/pen", "source/a,b", "target/cup", "target/pen", "target/key")):
        (root / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 8), (40 * colour, 100 * number, 0)).save(root / name / f"{number}.png")
    return root


def opened(root: Path, cache: Path, **options: Any) -> tuple[Source, Target]:
    data = DataOptions(source=root / "source", target=root / "target", cache=cache, image_size=8, crop=8, **options)
    return open_domains(data, visible=False)


def test_it_is_as_if_they_had_never_been_there(folders: Path, tmp_path: Path) -> None:
    without = Path(shutil.copytree(folders, tmp_path / "without"))
    for name in ("source/a,b", "target/pen", "target/key"):
        shutil.rmtree(without / name)
    source, target = opened(folders, tmp_path / "cache", source_without="a,b", target_without="pen/key")
    other_source, other_target = opened(without, tmp_path / "cache")
    assert source.classes == other_source.classes == ("cup", "pen")
    assert source.labels.tolist() == other_source.labels.tolist()
    for one, other in ((source.pixels, other_source.pixels), (target.pixels, other_target.pixels)):
        assert [file.digest for file in one.files] == [file.digest for file in other.files]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"target_without": "kay"}, "did you mean 'key'"),
        ({"target_without": "cup,pen"}, "put / between names"),
        ({"target_without": "cup/pen/key"}, "keep at least one"),
        ({"source_without": "pen/a,b"}, "has one class"),
    ],
)
def test_a_wrong_name_is_refused(folders: Path, tmp_path: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        opened(folders, tmp_path / "cache", **options)


def test_label_sets() -> None:
    sets = LabelSets(shared=("a", "b"), source_private=("c",), target_private=("d", "e"))
    assert sets.without((), ()) == sets
    assert sets.without((), ("d",)).target_private == ("e",)
    assert sets.without(("a",), ()) == LabelSets(("b",), ("c",), ("a", "d", "e"))  # the target still has it
    assert sets.without(("a",), ("a", "d")) == LabelSets(("b",), ("c",), ("e",))


def test_of_a_benchmark(tmp_path: Path) -> None:
    def pair(**options: Any) -> LabelSets:
        found = benchmark_pair(DataOptions(benchmark="office31", root=tmp_path, pair="A:D", **options))
        assert found is not None
        return found.label_sets

    whole = pair()
    first, *others = whole.target_private
    assert pair(target_without="/".join(others)) == LabelSets(whole.shared, whole.source_private, (first,))
    with pytest.raises(UserError, match=r"--source-without has .* Office-31 under unida"):
        pair(source_without=first)
