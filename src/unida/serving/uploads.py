"""A request's images: read with limits of bytes and time, held in memory only. Their names are never used as paths."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from fastapi import HTTPException, Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from unida.errors import printable
from unida.serving.limits import NoRoom
from unida.serving.options import ServeOptions

FIELD = "images"
LONGEST_NAME = 255
AGAIN = {"Retry-After": "1"}
LAST = {"Connection": "close"}  # the rest of the request is not read


class Upload(NamedTuple):
    name: str
    data: bytes


class _InMemory(MultiPartParser):
    """Nothing is written to a temporary file. The request's own limit comes first."""

    spool_max_size = 2**62


async def read_uploads(request: Request, options: ServeOptions, hold: Callable[[int], None]) -> list[Upload]:
    """The images of a multipart request. Anything else is an HTTPException of the 4xx kind, with the reason.

    Args:
        hold: told how many bytes come, before they are kept.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise HTTPException(415, f"send multipart/form-data with the field {FIELD!r}, not {kind or 'nothing'}", LAST)
    parser = _InMemory(
        request.headers, _limited(request, options.request_bytes, hold), max_files=options.images, max_fields=0
    )
    try:
        async with asyncio.timeout(options.upload_seconds):
            form = await parser.parse()
    except TimeoutError as error:
        raise HTTPException(408, f"the request took more than {options.upload_seconds:g} s to arrive", LAST) from error
    except NoRoom as error:
        raise HTTPException(503, "too many uploads at this moment: try again", {**AGAIN, **LAST}) from error
    except MultiPartException as error:
        raise _explained(error, options) from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the request ended before its end") from error
    except (ValueError, UnicodeError, LookupError) as error:  # from headers that are damaged
        raise HTTPException(400, "the multipart request is damaged", LAST) from error
    try:
        return [_checked(name, value, options) for name, value in form.multi_items()] or _nothing()
    finally:
        await form.close()


async def _limited(request: Request, most: int, hold: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    total, too_large = 0, HTTPException(413, f"the request has more than {most / 1e6:g} MB: send fewer images", LAST)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise too_large
    async for chunk in request.stream():
        total += len(chunk)
        if total > most:
            raise too_large
        hold(len(chunk))
        yield chunk
        await asyncio.sleep(0)  # to parse megabytes takes time: others have their turn


def _explained(error: MultiPartException, options: ServeOptions) -> HTTPException:
    """The parser's reasons in plain words."""
    if error.message.startswith("Too many files"):
        return HTTPException(413, f"the request has more than {options.images} images: send several requests", LAST)
    if error.message.startswith("Too many fields"):
        return HTTPException(400, f"send files in the field {FIELD!r} and nothing else; each needs a file name", LAST)
    return HTTPException(400, "the multipart request is damaged, or it ended too early", LAST)


def _nothing() -> list[Upload]:
    raise HTTPException(400, f"the request has no image: send one or more files in the field {FIELD!r}")


def _checked(field: str, value: UploadFile | str, options: ServeOptions) -> Upload:
    if field != FIELD or isinstance(value, str):
        raise HTTPException(400, f"send files in the field {FIELD!r} and nothing else")
    name = value.filename or ""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or "/" in name or "\\" in name or name == "..":
        shown = printable(name[:40])
        raise HTTPException(400, f"the file name {shown!r} is not allowed: use a plain one, without a folder")
    if (value.size or 0) > options.image_bytes:
        raise HTTPException(413, f"{name}: has more than {options.image_mb:g} MB")
    return Upload(name, value.file.read())
