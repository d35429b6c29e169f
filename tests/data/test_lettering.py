import pytest
from PIL import ImageFont

from unida.data import lettering
from unida.data.lettering import lettered


@pytest.fixture
def no_other_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lettering, "WIDE_FONTS", ())


def test_english_names_keep_pillows_own_font() -> None:
    text, font = lettered("mug_2 (the “blue” one) …", 15)
    assert text == "mug_2 (the “blue” one) …"
    assert font.getname() == ImageFont.load_default(size=15).getname()


@pytest.mark.parametrize("name", ["Büroschrank", "кошка", "γάτα"])
def test_letters_of_other_languages_are_drawn_as_they_are(name: str) -> None:
    pytest.importorskip("matplotlib")  # brings a font that has them
    text, font = lettered(name, 15)
    assert text == name
    assert font.getmask("ш").getbbox() != font.getmask(lettering.NO_LETTER).getbbox()


def test_a_letter_with_its_accent_as_a_letter_of_its_own_is_joined() -> None:
    assert lettered("u\u0308ber", 15) == lettered("über", 15)


@pytest.mark.usefixtures("no_other_fonts")
def test_what_no_font_has_is_written_in_another_form() -> None:
    assert lettered("Büro 猫", 15)[0] == r"Buro \u732b"


def test_unprintable_characters_stay_escaped() -> None:
    assert lettered("a\nb", 15)[0] == r"a\nb"
