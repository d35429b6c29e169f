import pytest

from unida.data.settings import LabelSets
from unida.errors import UserError


def test_ids_are_positions_in_shared_then_source_private() -> None:
    sets = LabelSets(("mug", "pen"), ("ruler",), ("phone", "desk"))
    assert sets.source_classes == ("mug", "pen", "ruler")
    assert sets.target_classes == ("mug", "pen", "phone", "desk")
    assert sets.unknown == 3


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
