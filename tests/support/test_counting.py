from unida.support.counting import counted


def test_one_thing_is_not_many() -> None:
    assert [counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
