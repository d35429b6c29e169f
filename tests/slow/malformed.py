"""Thousands of malformed requests against `unida serve`, for a minute or two.

    python tests/slow/malformed.py --requests 2000
    python tests/slow/malformed.py --requests 2000 --address http://127.0.0.1:8000     # a server that runs already

Bytes of images and of whole requests are changed, cut and repeated. Each must get a status below 500 (or 503: busy),
and the server must answer a good image after them. Memory, open files and the working folder are compared before and
after. Anything else is printed, and the exit code is 1. It is no part of `make test`.

`schemathesis run ADDRESS/openapi.json` draws requests from the description of the API.
"""

import argparse
import collections
import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from unida.data.glyphs import write_glyphs

os.environ["OMP_NUM_THREADS"] = "1"
KINDS = ("PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP")
NAMES = ("a.png", "../../../tmp/evil.png", "..", "a\\b", "a\x00b", "é" * 200, '"', "CON", "%2e%2e%2f", "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Malformed requests.")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--address", help="of a server that runs already; without it, one is started on a tiny run")
    options = parser.parse_args()
    if options.address:
        port = int(options.address.rstrip("/").rpartition(":")[2])
        sys.exit(attack(port, options.requests, options.seed))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(attack_own_server(Path(folder), options.requests, options.seed))


def attack_own_server(folder: Path, requests: int, seed: int) -> int:
    glyphs = write_glyphs(folder / "data", shared=3, source_private=1, target_private=2, per_class=4, size=40)
    words = f"adapt --source {glyphs.source} --target {glyphs.target} --out {folder / 'run'} --cache {folder / 'cache'}"
    sizes = "--backbone test_resnet --weights none --train all --image-size 40 --crop 32 --steps 2 --batch-size 4"
    unida = [sys.executable, "-m", "unida"]
    subprocess.run([*unida, *words.split(), *sizes.split()], check=True, capture_output=True)
    home = folder / "home"  # what the server writes by mistake is seen here, or in the folders around it
    home.mkdir()
    places = {**os.environ, "TMPDIR": str(home), "HOME": str(home)}
    command = [*unida, "serve", str(folder / "run"), "--port", "0", "--rate", "0", "--megapixels", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home, env=places) as server:
        assert server.stdout is not None
        port = next(int(found[1]) for line in server.stdout if (found := re.search(r"http://.*:(\d+)/", line)))
        attack(port, 200, seed + 1)  # what is loaded on first use is no leak
        before = state_of(server.pid, folder)
        wrong = attack(port, requests, seed)
        after = state_of(server.pid, folder)
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    print(f"before: {before[:2]} (MiB, open files); after: {after[:2]}; exit code after SIGTERM {code}")
    if code or after[2] != before[2] or after[1] > before[1] + 5 or after[0] > before[0] + 50:
        print("FAILED: files were written, or memory or open files grew", sorted(after[2] ^ before[2]))
        return 1
    return wrong


def state_of(pid: int, folder: Path) -> tuple[int, int, set[str]]:
    """Resident MiB, open files, and all files below the folder."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]
    return resident, len(os.listdir(f"/proc/{pid}/fd")), {str(path) for path in folder.rglob("*")}


def attack(port: int, requests: int, seed: int) -> int:
    draw, found, wrong = random.Random(seed), collections.Counter[str](), 0
    for number in range(requests):
        sent, is_cut = request_of(draw)
        status = ask(port, sent, is_cut)
        found[status] += 1
        if (status.startswith("5") and status != "503") or (status == "closed" and not is_cut):
            wrong += 1
            print(f"request {number}: status {status}\n  {sent[:300]!r}")
    good = ask(port, whole_request(body_of(picture(random.Random(0)), b"a.png")))
    print(f"{requests} requests: {dict(sorted(found.items()))}; a good image then: {good}")
    return int(wrong > 0 or good != "200")


def request_of(draw: random.Random) -> tuple[bytes, bool]:
    """A request with something wrong in it: in the image, in the multipart body, or anywhere.

    Also whether its end may be missing: then the connection is closed after it, and nobody needs to answer.
    """
    kind = draw.random()
    if kind < 0.6:
        name = draw.choice(NAMES) if draw.random() < 0.3 else "a.png"
        return whole_request(body_of(spoiled(picture(draw), draw), name.encode(errors="replace"))), False
    if kind < 0.8:
        return whole_request(spoiled(body_of(picture(draw), b"a.png"), draw)), False
    if kind < 0.9:
        path = draw.choice(["/pictures/", "/", "/predict?explain=", "/about/"]) + "".join(
            draw.choice("../%0aé\\x1-") for _ in range(draw.randrange(12))
        )
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode(errors="replace"), False
    return spoiled(whole_request(body_of(picture(draw), b"a.png")), draw), True


def picture(draw: random.Random) -> bytes:
    stream = io.BytesIO()
    size = (draw.randrange(1, 40), draw.randrange(1, 40))
    Image.new(draw.choice(["RGB", "L"]), size, draw.randrange(256)).save(stream, draw.choice(KINDS))
    return stream.getvalue()


def spoiled(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 10)):
        place = draw.randrange(len(changed))
        way = draw.random()
        if way < 0.6:
            changed[place] = draw.choice([0, 255, draw.randrange(256)])
        elif way < 0.75:
            del changed[place : place + draw.randrange(1, 20)]
        elif way < 0.9:
            changed[place:place] = changed[place : place + draw.randrange(1, 50)]
        else:
            del changed[max(1, place) :]
        if not changed:
            return b"\x00"
    return bytes(changed)


def body_of(image: bytes, name: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="' + name + b'"\r\n\r\n'
    return head + image + b"\r\n--x--\r\n"


def whole_request(body: bytes) -> bytes:
    head = f"POST /predict?explain=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + body


def ask(port: int, sent: bytes, is_cut: bool = False) -> str:
    """The status, or "closed" if the server said nothing: a request that ends too early has no answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(sent)
            if is_cut:
                connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return "closed"
    found = re.match(rb"HTTP/1\.1 (\d{3})", answer)
    return found[1].decode() if found else "closed"


if __name__ == "__main__":
    main()
