"""Parameters and multiply-adds: the SPA paper's table, and small networks counted by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from unida.analysis.complexity import Complexity, compare, comparison_lines, count
from unida.analysis.options import ComplexityOptions
from unida.answering.alone import Answering
from unida.cli import main
from unida.methods.base import Scores

PAPER = {"parameters": ("23.661", "25.686"), "multiply_adds": ("4.120", "4.223")}  # millions; thousand millions


def test_the_papers_table_comes_out() -> None:
    table = compare(ComplexityOptions())
    assert [cost.parameters for cost in table] == [23_661_632, 25_686_084]  # four of them are biases of f_n
    assert [cost.multiply_adds for cost in table] == [4_120_029_696, 4_222_667_264]
    # The paper's parameters are cut off after three decimals; rounded, the first would be 23.662.
    assert tuple(f"{math.floor(cost.parameters / 1e3) / 1e3:.3f}" for cost in table) == PAPER["parameters"]
    assert tuple(f"{cost.multiply_adds / 1e9:.3f}" for cost in table) == PAPER["multiply_adds"]


class Tiny(nn.Module):
    """One layer of each kind: 3 → 4 channels at half the size, pooled, 4 → 5."""

    num_classes, unknown_threshold = 5, 0.5

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, kernel_size=3, stride=2, padding=1, bias=False)
        self.norm, self.act, self.pool = nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 5, bias=False)

    def features(self, images: Tensor) -> Tensor:
        return self.pool(self.act(self.norm(self.conv(images)))).flatten(1)  # type: ignore[no-any-return]

    def score(self, features: Tensor) -> Scores:
        return Scores(self.head(features), torch.zeros(len(features)))


def test_each_kind_of_layer_is_counted_by_its_rule() -> None:
    network = Answering(Tiny())  # type: ignore[arg-type]
    map_elements = 4 * 8 * 8
    products = map_elements * 3 * 3 * 3 + 4 * 5
    elementwise = 2 * map_elements + map_elements + map_elements  # norm, activation, pooling
    parameters = 4 * 27 + 2 * 4 + 20
    assert count(network, crop=16) == Complexity(parameters, products + elementwise)


def test_products_between_tokens_are_counted() -> None:
    """Queries with keys and weights with values: two products of T × T × d."""
    tokens, width = 9, 6

    def attend(images: Tensor) -> Tensor:
        rows = torch.zeros(1, 1, tokens, width)
        return nn.functional.scaled_dot_product_attention(rows, rows, rows)

    scores = Scores(torch.zeros(1, 2), torch.zeros(1))
    method = SimpleNamespace(features=attend, score=lambda features: scores, num_classes=2, unknown_threshold=0.5)
    network = Answering(method)  # type: ignore[arg-type]
    assert count(network, crop=8).multiply_adds == 2 * tokens * tokens * width


@pytest.mark.parametrize(
    ("method", "outputs"),
    [("ovanet", 3 * 7), ("dcc", 256)],  # of the first layer behind the feature; DCC's own feature comes after it
)
def test_words_cost_their_layer_and_change_the_heads(method: str, outputs: int) -> None:
    plain, with_words = compare(ComplexityOptions("test_resnet.r160_in1k", 7, words=50, crop=64, method=method))
    channels = 96  # of the last map, 2 × 2 for 64 pixels
    heads_before, heads_after = outputs * channels, outputs * 50 + 4 * 50
    biases = 4  # of the pretext task's head
    assert with_words.parameters - plain.parameters == channels * 50 + heads_after + biases - heads_before
    pooled = 4 * 50 - 4 * channels  # elements that the pooling takes: words instead of channels
    expected = 4 * channels * 50 + heads_after - heads_before + pooled
    assert with_words.multiply_adds - plain.multiply_adds == expected


def test_the_command_prints_both_rows(capsys: pytest.CaptureFixture[str]) -> None:
    options = ComplexityOptions("test_resnet.r160_in1k", classes=3, words=16, crop=32, method="source-only")
    words = ["--backbone", options.backbone, "--classes", "3", "--words", "16", "--crop", "32"]
    main(["analyze", "complexity", *words, "--method", "source-only"])
    shown = capsys.readouterr().out
    assert shown == "\n".join(comparison_lines(options)) + "\n"
    plain, with_words = compare(options)
    assert f"({plain.parameters:,} parameters)" in shown and f"({with_words.parameters:,} parameters)" in shown


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--method", "nothing"], "'nothing'"),
        (["--words", "0"], "--words is 0"),
        (["--backbone", "resnet5"], "resnet5"),
        (["--backbone", "test_vit", "--crop", "30"], "--crop 30: backbone 'test_vit' cannot take it"),
    ],
)
def test_wrong_options_are_one_line(wrong: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["analyze", "complexity", *wrong])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.startswith("error: ") and said.count("\n") == 1 and named in said
