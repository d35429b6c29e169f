import pytest
from hypothesis import given
from hypothesis import strategies as st

from unida.data.settings import LabelSets
from unida.errors import UserError

names = st.lists(st.sampled_from("abcdefgh"), unique=True)


def test_ids_are_positions_in_shared_then_source_private() -> None:
    sets = LabelSets(("mug", "pen"), ("ruler",), ("phone", "desk"))
    assert sets.source_classes == ("mug", "pen", "ruler")
    assert sets.target_classes == ("mug", "pen", "phone", "desk")
    assert sets.unknown == 3
    assert [sets.target_id(name) for name in ("pen", "mug", "desk", "phone")] == [1, 0, 3, 3]


def test_a_source_private_class_has_no_target_id() -> None:
    with pytest.raises(UserError, match="'ruler' is not a target class"):
        LabelSets(("mug",), ("ruler",)).target_id("ruler")


@pytest.mark.parametrize(
    ("source_private", "target_private", "setting"),
    [((), (), "cda"), (("s",), (), "pda"), ((), ("t",), "osda"), (("s",), ("t",), "unida")],
)
def test_setting_follows_from_the_private_sets(
    source_private: tuple[str, ...], target_private: tuple[str, ...], setting: str
) -> None:
    assert LabelSets(("a", "b"), source_private, target_private).setting == setting


@pytest.mark.parametrize(
    "sets", [(("a", "a"), (), ()), (("a",), ("a",), ()), (("a",), (), ("a",)), (("b",), ("a",), ("a",))]
)
def test_a_class_listed_twice_is_named(sets: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(UserError, match="class 'a' is listed twice"):
        LabelSets(*sets)


def test_a_source_without_classes_is_refused() -> None:
    with pytest.raises(UserError, match="source has no class"):
        LabelSets((), (), ("a",))


def test_from_folders_keeps_the_order_given() -> None:
    sets = LabelSets.from_folders(["pen", "mug", "ruler"], ["phone", "mug", "pen"])
    assert sets == LabelSets(shared=("pen", "mug"), source_private=("ruler",), target_private=("phone",))


@given(source=names.filter(bool), target=names)
def test_from_folders_splits_the_classes_without_loss(source: list[str], target: list[str]) -> None:
    sets = LabelSets.from_folders(source, target)
    assert sorted(sets.source_classes) == sorted(source)
    assert sorted(sets.target_classes) == sorted(target)
    assert set(sets.shared) == set(source) & set(target)
