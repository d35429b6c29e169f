"""The plane of a map and the use of words, against plain versions."""

import torch
from sklearn.decomposition import PCA

from unida.analysis.atlas import WordUse, patch_box, used_by, word_use, words_to_show
from unida.reports.looking import principal_plane


def test_the_plane_is_that_of_pca() -> None:
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([5.0, 1, 3, 1, 1, 1])
    plane, expected = principal_plane(features), torch.from_numpy(PCA(2).fit_transform(features.numpy()))
    assert torch.allclose(plane.abs(), expected.abs().float(), atol=1e-4)


def test_a_plane_of_one_image_or_of_equal_images_is_finite() -> None:
    assert principal_plane(torch.ones(1, 4)).tolist() == [[0, 0]]
    assert principal_plane(torch.ones(5, 1)).tolist() == [[0, 0]] * 5


class Words:
    """A backbone whose map is the image; word k is at a location with the share softmax of its channels."""

    def map(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def vocabulary(self, features: torch.Tensor) -> torch.Tensor:
        return features.permute(0, 2, 3, 1).flatten(1, 2).log_softmax(dim=-1)


def test_the_use_of_words_is_counted_image_by_image() -> None:
    images = torch.randn(7, 4, 2, 3, generator=torch.Generator().manual_seed(1))
    use = word_use(Words(), images.split(3), patches=2)  # type: ignore[arg-type]
    shares = images.permute(0, 2, 3, 1).reshape(7, 6, 4).softmax(dim=-1)
    assert use.grid == (2, 3) and torch.allclose(use.share, shares.mean(dim=(0, 1)))
    for word in range(4):
        peaks = sorted(((shares[i, :, word].max().item(), i) for i in range(7)), reverse=True)[:2]
        assert use.images[word].tolist() == [image for _, image in peaks]
        for place, (peak, image) in zip(use.places[word].tolist(), peaks, strict=True):
            assert shares[image, place, word].item() == peak


def test_words_of_one_domain_are_pointed_out() -> None:
    def use(*share: float) -> WordUse:
        nothing = torch.zeros(len(share), 0)
        return WordUse(torch.tensor(share), nothing, nothing, nothing, (1, 1))

    source, target = use(0.5, 0.45, 0.01, 0.04), use(0.5, 0.01, 0.45, 0.04)
    assert [used_by(source, target, word) for word in range(4)] == ["both", "source", "target", "both"]
    assert words_to_show(source, target, 3) == [0, 1, 2] and len(words_to_show(source, target, 9)) == 4


def test_a_patch_lies_inside_the_crop() -> None:
    assert patch_box(0, (7, 7), 224) == (0, 0, 48, 48)
    assert patch_box(8, (7, 7), 224) == (16, 16, 80, 80)
    assert patch_box(48, (7, 7), 224) == (176, 176, 224, 224)
