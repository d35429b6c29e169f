"""The layers behind a frozen backbone have the shape of the released code, and the backbone stays as it is."""

import pytest
import torch
from torch import nn

from unida.methods.spa.backbone import WordBackbone
from unida.methods.spa.options import SPAOptions, resolve
from unida.models.backbone import create_backbone
from unida.models.source_free import Decoder, Extractor, SplitHead, keep_pretrained


def shape(network: nn.Sequential) -> list[object]:
    """Kinds of layers, with the sizes of those that have some."""
    return [
        (layer.in_features, layer.out_features)
        if isinstance(layer, nn.Linear)
        else layer.num_features
        if isinstance(layer, nn.BatchNorm1d)
        else type(layer)
        for layer in network
    ]


def test_layers_are_those_of_the_released_code() -> None:
    elu = nn.ELU
    assert shape(Extractor(2048)) == [
        *((2048, 1024), elu, (1024, 1024), 1024, elu),
        *((1024, 256), elu, (256, 256), 256, elu),
    ]
    assert shape(Decoder(256, 2048)) == [(256, 1024), elu, (1024, 1024), 1024, elu, (1024, 2048), elu, (2048, 2048)]


def test_a_head_in_two_parts_has_one_row_of_logits() -> None:
    head = SplitHead(6, 3, 4)
    features = torch.randn(5, 6)
    logits = head(features)
    assert logits.known.shape == (5, 3) and logits.negative.shape == (5, 4)
    assert torch.equal(logits.joined, torch.cat([head.known(features), head.negative(features)], dim=1))
    with torch.autocast("cpu", torch.bfloat16):
        assert {part.dtype for part in head(features)} == {torch.float32}


@pytest.mark.parametrize("with_words", [False, True])
def test_the_backbone_keeps_its_weights_and_statistics_and_new_layers_do_not(with_words: bool) -> None:
    torch.manual_seed(0)
    backbone = create_backbone("test_resnet", "none")
    words = resolve(SPAOptions(spa=True, spa_preset="paper", spa_vocabulary=8))
    network: nn.Module = WordBackbone(backbone, words) if with_words else backbone
    assert keep_pretrained(network) and not keep_pretrained(network)  # the second time, nothing could learn
    assert not any(p.requires_grad for p in backbone.parameters())
    assert [name for name, p in network.named_parameters() if p.requires_grad] == (
        ["vocabulary.prototypes"] if with_words else []
    )
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    network.train()
    network(torch.randn(4, 3, 64, 64))
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())
