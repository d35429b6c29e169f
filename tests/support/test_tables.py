"""Tables in Markdown."""

from unida.support.tables import markdown


def test_a_table_has_a_heading_and_a_line_for_each_line() -> None:
    assert markdown(["a", "b"], [["1", "2"], ["3", ""]]).splitlines() == [
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "| 3 |  |",
    ]


def test_no_name_can_break_it() -> None:
    assert markdown(["a"], [["x|y\nz"]]).splitlines()[2:] == [r"| x\|y\nz |"]
