"""`unida methods --compare`: what each method needs is read off its code."""

import pytest

from unida.methods import METHODS, compare
from unida.methods.compare import compare_lines, facts_of, read_measured
from unida.models.backbone import create_backbone
from unida.models.options import NO_WEIGHTS

TINY = "test_resnet.r160_in1k"


def test_facts_of_methods_with_and_without_the_source() -> None:
    backbone = create_backbone(TINY, NO_WEIGHTS)
    d = backbone.num_features
    plain, apart = facts_of("source-only", backbone), facts_of("usfda", backbone)
    assert (plain.stages, plain.is_source_free) == (1, False)
    assert plain.parameters == plain.to_answer == d * compare.CLASSES, "no bias, as in OVANet's code"
    assert (apart.stages, apart.is_source_free) == (2, True) and 0 < apart.to_answer < apart.parameters
    with_words = facts_of("source-only", backbone, spa=True)
    assert with_words.parameters > plain.parameters


def test_every_method_has_a_line_with_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BACKBONE", TINY)
    heading, *lines = compare_lines()
    lines = lines[: lines.index("")]
    table = {line.split()[0]: line for line in lines}
    assert set(METHODS) | set(read_measured()) <= set(table)
    assert len({len(line) for line in (heading, *(table[name] for name in METHODS))}) == 1, "columns are aligned"
    assert table["zhu"].startswith("zhu *") and not table["uan"].startswith("uan *")
    for name, setting in (("ovanet", "UniDA"), ("ovanet", "OSDA"), ("osbp", "OSDA"), ("zhu", "UniDA")):
        assert f" {read_measured()[name][f'{setting}, alone']} " in table[name]
    assert "UniDA, alone" not in read_measured()["osbp"] and "as released" not in "".join(table)
