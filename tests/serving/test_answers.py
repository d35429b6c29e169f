"""Answers over HTTP: those of `unida predict`, in one batch or many, and what they rest on."""

import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import unida
from unida.data.glyphs import GlyphFolders
from unida.errors import UserError
from unida.serving import batches as batches_module
from unida.serving.batches import Batches, TooBusy
from unida.serving.model import ServedModel
from unida.serving.pictures import Pictures, _small_picture

Start = Callable[..., Any]  # a client of a server with these options


def files_of(paths: list[Path]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (path.name, path.read_bytes())) for path in paths]


@pytest.fixture(scope="module")
def paths(glyphs: GlyphFolders) -> list[Path]:
    """Images of the target, which the run knows, and of the source, which are new to its answers."""
    return [*sorted(glyphs.target.rglob("*.png"))[:3], *sorted(glyphs.source.rglob("*.png"))[:3]]


def assert_same(answers: list[dict[str, Any]], predictions: list[unida.Prediction]) -> None:
    assert [one["label"] for one in answers] == [one.label for one in predictions]
    for name in ("probability", "unknown_score"):
        ours, theirs = [one[name] for one in answers], [getattr(one, name) for one in predictions]
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_answers_are_those_of_predict(start: Start, run: Path, paths: list[Path]) -> None:
    answers = start().post("/predict", files=files_of(paths)).json()["answers"]
    assert [one["name"] for one in answers] == [path.name for path in paths]
    assert [one["is_of_target"] for one in answers] == [True] * 3 + [False] * 3
    predictions = unida.load(run).predict(paths)
    assert_same(answers, list(predictions))
    assert len({one["probability"] for one in answers}) > 2  # or the comparison would say little


def test_alone_answers_are_those_of_predict_alone(run: Path, paths: list[Path]) -> None:
    model = ServedModel(run, alone=True)
    pictures = [model.decode(path.name, path.read_bytes(), 10**6) for path in paths]
    found = model.answer(pictures, explain=True)
    assert_same([vars(one) for one in found], list(unida.load(run).predict(paths, alone=True)))
    assert not any(one.says or one.is_of_target for one in found)


def test_an_answer_does_not_depend_on_the_batch(model: ServedModel, paths: list[Path]) -> None:
    pictures = [model.decode(path.name, path.read_bytes(), 10**6) for path in paths]
    together = model.answer(pictures, explain=True)
    for picture, expected in zip(pictures, together, strict=True):
        alone = model.answer([picture], explain=True)[0]
        assert (alone.label, alone.seen) == (expected.label, expected.seen)
        assert alone.unknown_score == pytest.approx(expected.unknown_score, abs=1e-5)
        assert [place for place, _ in alone.says] == [place for place, _ in expected.says]


def test_who_had_a_say_is_what_the_answer_is_made_of(model: ServedModel, paths: list[Path]) -> None:
    """The weights, put into the formula of `answering.together`, give the probabilities that were answered."""
    picture = model.decode("new.png", paths[-1].read_bytes(), 10**6)
    scored, _ = model.score([picture])
    answer = model.answer([picture], explain=True)[0]
    kept = model.answered.kept
    assert kept is not None and answer.says
    classes = len(model.info.classes)
    own = kept.own_weight * scored.probabilities[0]
    others = sum(weight * kept.spread[place, :classes].float() for place, weight in answer.says)
    mixed = own + torch.as_tensor(others)
    assert float((mixed / mixed.sum()).max()) == pytest.approx(answer.probability, abs=1e-5)


def test_words_are_those_of_the_network(model: ServedModel, paths: list[Path]) -> None:
    picture = model.decode("new.png", paths[0].read_bytes(), 10**6)
    words = model.answer([picture], explain=True)[0].words
    _, pixels = model.score([picture])
    method: Any = model.method
    with torch.inference_mode():
        features = method.words.map(model.preprocess.test_view(pixels, torch.arange(1).numpy()))
        vectors = features[0].flatten(1).T  # (places, channels)
        vocabulary = method.words.vocabulary
        closeness = torch.nn.functional.cosine_similarity(vectors[:, None], vocabulary.prototypes[None], dim=2)
        shares = (closeness / vocabulary.temperature).softmax(dim=1)
    assert [word.number for word in words] == shares.mean(dim=0).topk(4).indices.tolist()
    for word in words:
        found = torch.tensor(word.map).flatten()
        assert torch.allclose(found, shares[:, word.number], atol=1e-3)
        assert word.share == pytest.approx(float(shares[:, word.number].mean()), abs=1e-5)


def test_pictures_have_ids_and_those_that_are_gone_are_left_out(
    start: Start, paths: list[Path], glyphs: GlyphFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start()
    pictures = client.service.pictures
    before = client.post("/predict?explain=true", files=files_of(paths[-1:])).json()["answers"][0]["explanation"]
    assert before["source"] == [] and before["target"] == [] and before["words"]  # it answers before they are found
    pictures.list_files()
    until = time.monotonic() + 300
    while not pictures.is_ready and time.monotonic() < until:
        time.sleep(0.01)
    assert client.get("/about").json()["is_ready"]
    assert pictures.progress == (16, 16)
    shown = client.post("/predict?explain=true", files=files_of(paths[-1:])).json()["answers"][0]["explanation"]
    assert len(shown["source"]) == 5
    assert {one["text"] for one in shown["source"]} <= set(client.get("/about").json()["classes"])
    for one in (*shown["source"], *shown["target"]):
        small = client.get(f"/{one['picture']}")
        assert small.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(small.content)).size == (40, 40)
    for wrong in ("source-99", "target-99999999999", "source--1", "source-١", "..%2F..%2Fetc%2Fpasswd", "x", "target-"):
        assert client.get(f"/pictures/{wrong}").status_code == 404
    monkeypatch.setattr(Path, "exists", lambda path: False)
    gone = client.post("/predict?explain=true", files=files_of(paths[-1:])).json()["answers"][0]["explanation"]
    assert gone["source"] == [] and gone["target"] == []


def test_no_picture_is_of_a_class_that_was_left_out(glyphs: GlyphFolders, tmp_path: Path) -> None:
    left_out = {"source": sorted(path.name for path in glyphs.source.iterdir())[0]}
    left_out["target"] = sorted(path.name for path in glyphs.target.iterdir())[-1]
    names = {"source_without": left_out["source"], "target_without": left_out["target"]}
    options = {"method": "source-only", "backbone": "test_resnet", "weights": "none", "train": "head"}
    sizes = {"image_size": 72, "crop": 64, "cache": tmp_path / "cache"}
    unida.adapt(glyphs.source, glyphs.target, tmp_path / "run", **options, **sizes, **names)
    pictures = Pictures(ServedModel(tmp_path / "run", alone=False))
    pictures.list_files()
    for domain, folder in (("source", glyphs.source), ("target", glyphs.target)):
        files = sorted(folder.rglob("*.png"))
        shown = {pictures.small(f"{domain}-{place}") for place in range(len(files))} - {None}
        assert shown == {_small_picture(file) for file in files if file.parent.name != left_out[domain]}


def test_a_run_without_its_images_answers(start: Start, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    client = start()
    for name in ("scan", "used_source"):
        monkeypatch.setattr(f"unida.serving.pictures.{name}", lambda *_, **__: (_ for _ in ()).throw(UserError("gone")))
    client.service.pictures.list_files()
    assert client.service.pictures.is_ready
    answer = client.post("/predict?explain=true", files=files_of(paths[:1]))
    assert answer.status_code == 200 and answer.json()["answers"][0]["explanation"]["target"] == []


# Batches


def test_images_of_several_requests_are_answered_in_one_pass(start: Start, paths: list[Path]) -> None:
    client = start(answers=False)
    batches = client.service.batches
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(client.post, "/predict", files=files_of([path])) for path in paths]
        until = time.monotonic() + 300
        while batches.waiting < 6 and time.monotonic() < until:
            time.sleep(0.01)
        batches.start()
        assert [one.result().status_code for one in asked] == [200] * 6
    assert (batches.answered, batches.passes) == (6, 1)


def fake(name: str) -> Any:
    return name


def test_one_bad_image_spoils_no_other_and_a_cancelled_one_costs_nothing() -> None:
    seen: list[str] = []

    def answer(pictures: Any, explain: bool) -> Any:
        if "bad" in pictures:
            raise UserError("not finite")
        seen.extend(pictures)
        return [f"{name}!" for name in pictures]

    batches = Batches(answer, size=8)
    good, bad, cancelled, last = batches.submit([fake(name) for name in ("good", "bad", "cancelled", "last")], False)
    cancelled.cancel()
    batches.start()
    assert (good.result(5), last.result(5)) == ("good!", "last!")
    assert isinstance(bad.exception(5), UserError)
    batches.stop()
    assert seen == ["good", "last"]


def test_too_many_waiting_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MOST_WAITING", 2)
    batches = Batches(lambda pictures, explain: [], size=8)
    batches.submit([fake("a")], False)
    with pytest.raises(TooBusy):
        batches.submit([fake("b"), fake("c")], False)
    assert batches.waiting == 1


def test_other_work_is_done_while_nothing_waits_and_may_fail() -> None:
    done = threading.Event()
    work = iter([True, ZeroDivisionError(), True])

    def other() -> bool:
        now = next(work, None)
        if isinstance(now, Exception):
            raise now
        if now is None:
            done.set()
        return bool(now)

    batches = Batches(lambda pictures, explain: list(pictures), size=8, other_work=other)  # type: ignore[arg-type]
    batches.start()
    assert done.wait(5)
    assert batches.submit([fake("a")], False)[0].result(5) == "a"
    batches.stop()
