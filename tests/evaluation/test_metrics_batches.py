"""Open-set metrics over batches, and over two processes, are those of one call."""

import json
from pathlib import Path

import pytest
import torch
from made_answers import Samples, random_samples
from torch import multiprocessing

from unida.evaluation.batches import OpenSetMetrics
from unida.evaluation.metrics import OpenSetResult, open_set_metrics


def batches(samples: Samples, size: int) -> list[Samples]:
    return list(zip(*(values.split(size) for values in samples), strict=True))


def test_metric_over_batches_equals_one_call() -> None:
    samples = random_samples(4)
    whole = open_set_metrics(*samples, n_source_classes=7)
    metric = OpenSetMetrics(n_source_classes=7)
    for batch in batches(samples, 37):
        metric.update(*batch)
    result = metric.compute()
    assert isinstance(result, OpenSetResult)
    assert result.scalars() == whole.scalars()
    assert result.per_class == whole.per_class
    assert torch.equal(result.confusion, whole.confusion)


def test_metric_forward_gives_the_batch_and_keeps_the_whole() -> None:
    samples = random_samples(4)
    first, second = batches(samples, 150)
    metric = OpenSetMetrics(n_source_classes=7)
    assert metric(*first).scalars() == open_set_metrics(*first, n_source_classes=7).scalars()
    assert metric(*second).scalars() == open_set_metrics(*second, n_source_classes=7).scalars()
    assert metric.compute().scalars() == open_set_metrics(*samples, n_source_classes=7).scalars()


def test_metric_starts_anew_after_reset() -> None:
    first, second = batches(random_samples(4), 150)
    metric = OpenSetMetrics(n_source_classes=7)
    metric.update(*first)
    metric.compute()
    metric.reset()
    metric.update(*second)
    assert metric.compute().scalars() == open_set_metrics(*second, n_source_classes=7).scalars()


def test_metric_refuses_a_crooked_batch_at_once() -> None:
    metric = OpenSetMetrics(n_source_classes=7)
    ids = torch.zeros(4).long()
    with pytest.raises(ValueError, match="one length"):
        metric.update(ids, ids, ids[:3], torch.zeros(4))
    with pytest.raises(ValueError, match="truth must hold integer"):
        metric.update(ids.float(), ids, ids, torch.zeros(4))


@pytest.mark.filterwarnings("ignore:The ``compute`` method:UserWarning")
def test_metric_without_any_batch_has_no_values() -> None:
    assert set(OpenSetMetrics(n_source_classes=2).compute().scalars().values()) == {None}


SHARDS = {"uneven": (201, 99), "second empty": (300, 0), "first empty": (0, 300)}


def compute_on_rank(rank: int, folder: str) -> None:
    """One of two processes: sees its shard of each case, writes down what it was given as the result."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    samples = random_samples(5)
    found = {}
    for case, sizes in SHARDS.items():
        metric = OpenSetMetrics(n_source_classes=7)
        shard: Samples = tuple(values.split(sizes)[rank] for values in samples)
        for batch in batches(shard, 64) if sizes[rank] else []:
            metric.update(*batch)
        result = metric.compute()
        found[case] = {"scalars": result.scalars(), "confusion": result.confusion.tolist()}
        assert sum(len(part) for part in metric.truth) == sizes[rank]  # its own images only, once more
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch built without distributed")
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    # Forked: this process has torch loaded, which is most of the time that new ones take.
    multiprocessing.start_processes(compute_on_rank, args=(str(tmp_path),), nprocs=2, start_method="fork")
    whole = open_set_metrics(*random_samples(5), n_source_classes=7)
    expected = {"scalars": whole.scalars(), "confusion": whole.confusion.tolist()}
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found == dict.fromkeys(SHARDS, expected)
