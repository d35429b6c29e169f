"""What the server refuses: a 4xx with the reason in plain words, or a 503; never a 5xx of its own making."""

import asyncio
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from unida.errors import UserError
from unida.serving import limits
from unida.serving.counts import Counts
from unida.serving.limits import Held, NoRoom, Rate
from unida.serving.options import ServeOptions

Start = Callable[..., Any]  # a client of a server with these options

TOKEN = "a-token-of-some-length"


def picture(size: tuple[int, int] = (20, 20), kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, "red").save(stream, kind)
    return stream.getvalue()


def one(data: bytes, name: str = "a.png", field: str = "images") -> list[tuple[str, tuple[str, bytes]]]:
    return [(field, (name, data))]


BOUNDARY = {"Content-Type": "multipart/form-data; boundary=x"}
PART = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'

REFUSED: dict[str, tuple[int, str, dict[str, Any]]] = {
    "text": (422, "a.png: not an image", {"files": one(b"hello")}),
    "empty": (422, "a.png: empty file", {"files": one(b"")}),
    "cut": (422, "a.png: truncated", {"files": one(picture((60, 60))[:60])}),
    "svg": (422, "not an image", {"files": one(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a.svg")}),
    "bomb": (422, "too many pixels (more than 1,000,000)", {"files": one(picture((1001, 1000)))}),
    "large": (413, "a.png: has more than 0.03 MB", {"files": one(bytes(30_001))}),
    "many bytes": (413, "more than 0.1 MB", {"files": one(bytes(100_001))}),
    "many images": (413, "more than 3 images", {"files": one(picture()) * 4}),
    "a good one and a bad one": (422, "b.png", {"files": [*one(picture()), *one(b"x", "b.png")]}),
    "path": (400, "file name", {"files": one(picture(), "../../a.png")}),
    "windows path": (400, "file name", {"files": one(picture(), "..\\a.png")}),
    "line break": (400, "file name", {"files": one(picture(), "a\u2028.png")}),
    "long name": (400, "file name", {"files": one(picture(), "a" * 300)}),
    "other field": (400, "'images'", {"files": one(picture(), field="photo")}),
    "field without a file": (400, "'images'", {"files": [("images", (None, b"text"))]}),
    "nothing": (400, "no image", {"content": b"--x--\r\n", "headers": BOUNDARY}),
    "json": (415, "not application/json", {"json": {}}),
    "no type": (415, "not nothing", {"content": picture()}),
    "no boundary": (400, "damaged", {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}),
    "cut multipart": (422, "empty file", {"content": PART + b"\r\n--x--", "headers": BOUNDARY}),
    "no multipart": (400, "damaged", {"content": b"\x00\xff" * 99, "headers": BOUNDARY}),
    "never closed": (400, "", {"content": PART[:40], "headers": BOUNDARY}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_get_a_reason(case: str, start: Start) -> None:
    client = start(images=3, image_mb=0.03, request_mb=0.1, megapixels=1.0)
    status, reason, request = REFUSED[case]
    answer = client.post("/predict", **request)
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["detail"]
    assert client.service.held.bytes == 0  # nothing is held after it


def test_damaged_images_never_give_a_5xx(start: Start) -> None:
    """Bytes changed, cut and put in, of each kind of file. A picture that can still be read is answered."""
    client = start()
    draw, statuses = random.Random(0), set()
    for _ in range(60):
        data = bytearray(picture((16, 16), draw.choice(["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP"])))
        for _ in range(draw.randrange(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        end = draw.randrange(len(data)) if draw.random() < 0.3 else len(data)
        answer = client.post("/predict", files=one(bytes(data[:end])))
        assert answer.status_code in (200, 422), answer.text
        statuses.add(answer.status_code)
    assert statuses == {200, 422}


def test_a_slow_upload_is_given_up_and_blocks_nobody(start: Start) -> None:
    client = start(upload_seconds=0.3)

    async def ask() -> tuple[int, int]:
        slow = asyncio.create_task(_call(client.gate, "POST", "/predict", never_ends=True))
        await asyncio.sleep(0.05)
        quick = await _call(client.gate, "GET", "/about")
        assert not slow.done()
        return quick, await slow

    assert asyncio.run(ask()) == (200, 408)
    assert client.service.held.bytes == 0 and client.gate.in_flight == 0


async def _call(app: Any, method: str, path: str, never_ends: bool = False) -> int:
    statuses = []

    async def receive() -> dict[str, Any]:
        if never_ends:
            await asyncio.sleep(0.02)
        return {"type": "http.request", "body": PART if never_ends else b"", "more_body": never_ends}

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status"))

    headers = [(b"host", b"localhost"), (b"content-type", BOUNDARY["Content-Type"].encode())]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": headers}
    await app({**scope, "query_string": b"", "client": ("127.0.0.1", 1), "http_version": "1.1"}, receive, send)
    return int(statuses[0])


def test_a_wrong_or_missing_token_is_refused(start: Start) -> None:
    client = start(token=TOKEN)
    for path in ("/about", "/metrics", "/pictures/source-0", "/nothing"):
        answer = client.get(path)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    wrong = ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"bearer {TOKEN[:-1]}", "Bearer ünïcode".encode())
    for given in wrong:
        assert client.post("/predict", files=one(picture()), headers={"Authorization": given}).status_code == 401
    for path in ("/", "/page.js", "/style.css", "/icon.svg", "/health", "/openapi.json"):
        assert client.get(path).status_code == 200
    assert client.get("/about", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_without_a_token_only_names_of_this_machine_are_answered(start: Start) -> None:
    client = start()
    names = {"localhost:8000": 200, "127.0.0.1": 200, "[::1]:8000": 200, "evil.example": 400, "": 400, "[x": 400}
    for host, status in names.items():
        assert client.get("/about", headers={"Host": host}).status_code == status, host
    assert start(token=TOKEN).get("/health", headers={"Host": "evil.example"}).status_code == 200


def test_a_client_that_asks_too_often_has_to_wait(start: Start) -> None:
    client = start(rate=1.0)
    statuses = [client.post("/predict", files=one(b"x")).status_code for _ in range(3)]
    assert statuses == [422, 422, 429]
    refused = client.post("/predict", files=one(b"x"))
    assert refused.headers["retry-after"] == "1" and "wait 1 s" in refused.json()["detail"]
    assert client.get("/health").status_code == 200


def test_a_bucket_fills_again() -> None:
    now = 0.0
    rate = Rate(2.0, lambda: now)
    assert [rate.seconds_to_wait("a") for _ in range(5)] == [0, 0, 0, 0, 1]
    assert rate.seconds_to_wait("b") == 0  # another client has a bucket of its own
    now = 0.5
    assert [rate.seconds_to_wait("a") for _ in range(2)] == [0, 1]
    now = 1000.0
    assert [rate.seconds_to_wait("a") for _ in range(5)] == [0, 0, 0, 0, 1]  # it does not overflow
    slow = Rate(0.1, lambda: now)
    assert [slow.seconds_to_wait("a") for _ in range(2)] == [0, 10]


def test_addresses_of_one_network_share_a_bucket_and_old_ones_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CLIENTS", 2)
    rate = Rate(0.5, lambda: 0.0)
    assert [rate.seconds_to_wait(f"2001:db8::{i}") for i in range(2)] == [0, 2]
    assert rate.seconds_to_wait("2001:db8:0:1::1") == 0
    assert [rate.seconds_to_wait(client) for client in ("10.0.0.1", "10.0.0.2", "10.0.0.1")] == [0, 0, 2]
    assert len(rate._buckets) == 2


def test_all_requests_together_hold_only_so_many_bytes(start: Start) -> None:
    held = Held(most=10)
    with held.for_request() as first, held.for_request() as second:
        first(6)
        with pytest.raises(NoRoom):
            second(5)
        second(4)
        assert held.bytes == 10
    assert held.bytes == 0
    client = start()
    client.service.held._most = 100
    answer = client.post("/predict", files=one(picture()))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_while_it_drains_it_takes_nothing_new(start: Start) -> None:
    client = start()
    client.gate.is_draining = True
    refused = client.post("/predict", files=one(picture()))
    assert (refused.status_code, refused.headers["connection"]) == (503, "close")
    health = client.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "draining"})


def test_pages_load_nothing_from_elsewhere(start: Start) -> None:
    client = start()
    for path in ("/", "/page.js", "/style.css", "/nothing", "/about"):
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    page = client.get("/").text
    assert "http" not in page and "<style" not in page and " style=" not in page and "onclick" not in page
    assert page.count("<script") == 1 and 'src="page.js"' in page
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_the_api_describes_itself(start: Start) -> None:
    described = start().get("/openapi.json").json()
    assert set(described["paths"]) == {"/predict", "/health", "/about", "/metrics", "/pictures/{picture}"}
    assert {"200", "400", "401", "413", "422", "429", "503"} <= set(described["paths"]["/predict"]["post"]["responses"])
    assert start().post("/predict?explain=perhaps", files=one(picture())).json()["detail"].startswith("explain: ")


def test_counts_are_what_prometheus_reads() -> None:
    counts = Counts()
    for seconds in (0.004, 0.2, 20.0):
        counts.add("/predict", 200, seconds)
    counts.add("/predict", 422, 0.1)
    lines = counts.text({"images_answered_total": 3}, {"images_waiting": 0}).splitlines()
    assert 'unida_requests_total{path="/predict",status="200"} 3' in lines
    assert 'unida_predict_seconds_bucket{le="0.005"} 1' in lines
    assert 'unida_predict_seconds_bucket{le="0.25"} 2' in lines
    assert 'unida_predict_seconds_bucket{le="10"} 2' in lines
    assert 'unida_predict_seconds_bucket{le="+Inf"} 3' in lines
    assert "unida_predict_seconds_sum 20.204000" in lines and "unida_images_answered_total 3" in lines


def test_metrics_do_not_grow_with_what_strangers_ask_for(start: Start) -> None:
    client = start()
    for i in range(5):
        client.get(f"/nothing-{i}")
    text = client.get("/metrics").text
    assert 'path="other",status="404"} 5' in text and "nothing" not in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"port": 70000}, "--port"),
        ({"images": 0}, "--images"),
        ({"rate": -1.0}, "--rate"),
        ({"token": "short"}, "--token"),
    ],
)
def test_options_are_checked(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        ServeOptions(Path("run"), **options).check()


def test_a_token_is_made_where_other_machines_can_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    from unida.serving.server import token_for

    monkeypatch.delenv("UNIDA_TOKEN", raising=False)
    for host in ("127.0.0.1", "localhost", "::1"):
        assert token_for(ServeOptions(Path("run"), host=host)) == (None, False)
    first, second = (token_for(ServeOptions(Path("run"), host=host)) for host in ("0.0.0.0", "example.org"))
    assert first[1] and second[1] and first != second and len(first[0] or "") > 40
    monkeypatch.setenv("UNIDA_TOKEN", TOKEN)
    assert token_for(ServeOptions(Path("run"))) == (TOKEN, False)
    monkeypatch.setenv("UNIDA_TOKEN", "short")
    with pytest.raises(UserError, match="--token"):
        token_for(ServeOptions(Path("run")))
