"""`unida serve` under load, from a second process.

# how to run
    python benchmarks/serve.py                                  # draws pictures, makes a tiny run, 10,000 requests
    python benchmarks/serve.py --run RUN --images DIR --requests 500

Several clients, each with a connection of its own, send one image after the other. Compares the memory of the server
after a tenth of the requests and after all. Writes serve.csv.
"""

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Measure, report

from unida.data.glyphs import write_glyphs


def main() -> None:
    parser = argparse.ArgumentParser(description="A server under load.")
    parser.add_argument("--run", type=Path, help="of a finished run; without it, a tiny one is made")
    parser.add_argument("--images", type=Path, help="folder of images to send")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--csv", type=Path, default=Path(__file__).with_suffix(".csv"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, images = (options.run, options.images) if options.run else tiny_run(Path(folder))
        bodies = [body_of(path) for path in sorted(images.rglob("*.*g"))[:64]]
        with subprocess.Popen(
            [sys.executable, "-m", "unida", "serve", str(run), "--port", "0", "--rate", "0"],
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            port = next(int(found[1]) for line in server.stdout if (found := re.search(r"http://.*:(\d+)/", line)))
            measures = asyncio.run(load(port, server.pid, bodies, options.requests, options.clients))
            server.send_signal(signal.SIGTERM)
            measures.append(Measure("exit code after SIGTERM", str(server.wait(60)), ""))
    report(measures, options.csv, clients=options.clients, threads=os.environ.get("OMP_NUM_THREADS", "all"))


def tiny_run(folder: Path) -> tuple[Path, Path]:
    glyphs = write_glyphs(folder / "data", shared=3, source_private=1, target_private=2, per_class=12, size=40)
    words = f"adapt --source {glyphs.source} --target {glyphs.target} --out {folder / 'run'} --cache {folder / 'cache'}"
    sizes = "--backbone test_resnet --weights none --train all --image-size 40 --crop 32 --steps 8 --batch-size 4"
    subprocess.run([sys.executable, "-m", "unida", *words.split(), *sizes.split()], check=True, capture_output=True)
    return folder / "run", glyphs.source


def body_of(path: Path) -> bytes:
    head = f'--x\r\nContent-Disposition: form-data; name="images"; filename="{path.name}"\r\n\r\n'
    return head.encode() + path.read_bytes() + b"\r\n--x--\r\n"


async def load(port: int, pid: int, bodies: list[bytes], requests: int, clients: int) -> list[Measure]:
    left, seconds, resident = iter(range(requests)), [], {}
    early = max(1, requests // 10)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in left:
            start = time.perf_counter()
            await ask(reader, writer, bodies[number % len(bodies)])
            seconds.append(time.perf_counter() - start)
            if len(seconds) in (early, requests):
                resident[len(seconds)] = memory_of(pid)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    whole = time.perf_counter() - start
    seconds.sort()
    return [
        Measure("requests", requests, ""),
        Measure("requests a second", requests / whole, "1/s"),
        Measure("median", 1000 * seconds[len(seconds) // 2], "ms"),
        Measure("99 of 100 within", 1000 * seconds[int(0.99 * len(seconds))], "ms"),
        *(Measure(f"memory after {count} requests", size / 2**20, "MiB") for count, size in sorted(resident.items())),
    ]


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    writer.write(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    assert answer.startswith("http/1.1 200"), answer
    await reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))


def memory_of(pid: int) -> int:
    """Resident bytes of a process. Linux only."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
