"""The domain discriminator: its layers, and what they do to a batch."""

import torch
from torch import nn

from unida.models.discriminator import Discriminator


def test_layers_of_uan_and_of_tllib() -> None:
    plain, normalised = Discriminator(8), Discriminator(8, normalise=True)
    between = [nn.Linear, nn.ReLU, nn.Dropout] * 2 + [nn.Linear]
    assert [type(layer) for layer in plain.layers] == between
    assert [type(layer) for layer in normalised.layers] == [nn.Linear, nn.BatchNorm1d, nn.ReLU] * 2 + [nn.Linear]
    for made in (plain, normalised):
        sizes = [layer.weight.shape for layer in made.layers if isinstance(layer, nn.Linear)]
        assert sizes == [(1024, 8), (1024, 1024), (1, 1024)]
    leaking = [layer for layer in Discriminator(8, normalise=True, leak=0.2).layers if isinstance(layer, nn.LeakyReLU)]
    assert [layer.negative_slope for layer in leaking] == [0.2, 0.2]


def test_one_number_for_each_image_noisy_only_in_training() -> None:
    torch.manual_seed(0)
    made, features = Discriminator(8), torch.randn(5, 8)
    assert made(features).shape == (5,)
    assert not torch.equal(made(features), made(features))
    made.eval()
    assert torch.equal(made(features), made(features))
