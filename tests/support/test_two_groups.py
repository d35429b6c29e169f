"""Two groups, fitted by EM. tests/answering/test_threshold.py has the slow version of the formulas."""

import torch

from unida.support.two_groups import fit


def test_a_number_can_stand_for_several_images() -> None:
    x, images = torch.tensor([0.1, 0.3, 0.8], dtype=torch.float64), torch.tensor([7, 1, 40])
    together = fit(x, (0.0, 1.0), (0.25, 0.25), images)
    one_by_one = fit(x.repeat_interleave(images), (0.0, 1.0), (0.25, 0.25))
    torch.testing.assert_close(together, one_by_one)
