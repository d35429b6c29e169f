"""What the JSON API sends. FastAPI makes /openapi.json from it."""

from typing import Any

from pydantic import BaseModel, Field


class Problem(BaseModel):
    detail: str = Field(description="What is wrong, in plain words")


class NearPicture(BaseModel):
    picture: str = Field(description="Address of a small picture on this server")
    text: str = Field(description="Source: its class. Target: what the run answered for it")
    weight: float = Field(description="Target: how much say it had, 0 to 1. Source: cosine of the features")


class WordMap(BaseModel):
    word: int
    share: float = Field(description="Share of the word in the image, 0 to 1")
    map: list[list[float]] = Field(description="How much of it is at each place, row by row, 0 to 1")


class Explanation(BaseModel):
    seen: list[float] = Field(description="What the network sees: left, top, width, height, as parts of the image")
    target: list[NearPicture] = Field(description="Target images that had a say in the answer")
    source: list[NearPicture] = Field(description="The nearest source images; empty until all have been looked at")
    words: list[WordMap] = Field(description="With SPA: the words with the largest shares, and where they are")


class ImageAnswer(BaseModel):
    name: str = Field(description="The file name that was sent")
    label: str = Field(description='A class of the source, or "unknown"')
    best_class: str = Field(description="The best class, also where the label is unknown")
    probability: float = Field(description="Of the best class")
    unknown_score: float = Field(description="0 to 1; above the threshold, the label is unknown")
    is_of_target: bool = Field(description="An image of the run's own target: it has the answer that it had there")
    explanation: Explanation | None = None


class PredictAnswer(BaseModel):
    answers: list[ImageAnswer] = Field(description="One for each image, in the order in which they were sent")
    threshold: float


class Health(BaseModel):
    status: str = Field(description="ready, or draining: it ends soon and takes no new requests")


class About(BaseModel):
    run: str = Field(description="Method and backbone")
    how: str = Field(description="How it answers")
    classes: list[str]
    threshold: float
    has_words: bool
    source_done: int = Field(description="Source images that have been looked at, to show the nearest ones")
    source_all: int
    is_ready: bool = Field(description="Whether all of them have been looked at")
    image_bytes: int
    pixels: int
    images: int


REASONS = {
    400: "The request is damaged, or has something else than images",
    401: "The token is missing or wrong",
    404: "There is no such picture",
    408: "The request took too long to arrive",
    413: "Too many bytes, or too many images",
    415: "Not multipart/form-data",
    422: "A file is not an image, is damaged, or has too many pixels",
    429: "Too many requests: wait as long as Retry-After says",
    503: "Too much to do, or the server is about to end: try again later",
}


def problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem, "description": REASONS[code]} for code in codes}


def content(kind: str) -> dict[int | str, dict[str, Any]]:
    """A good answer that is no JSON."""
    return {200: {"content": {kind: {"schema": {"type": "string"}}}}}


UPLOAD = {  # the request's body: it is read by `unida.serving.uploads`, with limits that FastAPI does not have
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "additionalProperties": False,
                    "properties": {
                        "images": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "string", "format": "binary"},
                        }
                    },
                }
            }
        },
    }
}
