"""The options of `unida serve`."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from unida.errors import UserError
from unida.support.options import check_numbers, shown

SHORTEST_TOKEN = 16  # letters; a shorter one can be guessed


@dataclass(frozen=True)
class ServeOptions:
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a finished run."""
    host: Annotated[str, shown("ADDRESS", "(default: 127.0.0.1, this machine only)")] = "127.0.0.1"
    """Listen on this address. 0.0.0.0 is every network of this machine; then a token is needed."""
    port: int = 8000
    """Listen on this port. 0: any free one, which is printed."""
    token: Annotated[str | None, shown("TEXT", "(default: $UNIDA_TOKEN; for another --host, one is made)")] = None
    """Answer only requests that have this token."""
    alone: bool = False
    """Answer each image by itself, with the method's own threshold. Without it, its neighbours among the run's target
    images have a say."""
    no_pictures: bool = False
    """Show no pictures of the run's source and target beside an answer."""
    image_mb: float = 20.0
    """Refuse an image file of more megabytes."""
    megapixels: float = 50.0
    """Refuse an image of more million pixels."""
    images: int = 16
    """Refuse a request with more images."""
    request_mb: float = 64.0
    """Refuse a request of more megabytes."""
    rate: float = 20.0
    """Requests a second that one client may send for long; for a moment, twice as many. 0: no limit."""
    upload_seconds: float = 30.0
    """Give up on a request that takes longer to arrive."""

    def check(self) -> None:
        check_numbers(self, "port", least=0, most=65535)
        check_numbers(self, "images", least=1, most=1000)
        check_numbers(self, "rate", least=0)
        check_numbers(self, "image_mb", "request_mb", "megapixels", "upload_seconds", above=0)
        if self.token is not None:
            check_token(self.token)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name: it may be any machine
            return False

    @property
    def request_bytes(self) -> int:
        return int(self.request_mb * 1e6)

    @property
    def image_bytes(self) -> int:
        return int(self.image_mb * 1e6)

    @property
    def pixels(self) -> int:
        return int(self.megapixels * 1e6)


def check_token(token: str) -> None:
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"--token must have {SHORTEST_TOKEN} letters and digits or more, without spaces: a shorter one is guessed"
        )
