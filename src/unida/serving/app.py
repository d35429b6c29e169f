"""The page and the JSON API."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import resources
from importlib.metadata import version
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from unida.data.images import BadImage
from unida.errors import UserError
from unida.methods.spa.method import SPA
from unida.serving.batches import Batches, TooBusy
from unida.serving.counts import Counts
from unida.serving.gate import Gate
from unida.serving.limits import Held, NoRoom, Rate
from unida.serving.model import Answer, Picture, ServedModel
from unida.serving.options import ServeOptions
from unida.serving.pictures import Near, Pictures
from unida.serving.schema import (
    UPLOAD,
    About,
    Explanation,
    Health,
    ImageAnswer,
    NearPicture,
    PredictAnswer,
    WordMap,
    content,
    problems,
)
from unida.serving.uploads import AGAIN, Upload, read_uploads

DECODERS = 2  # threads: a large picture takes its time, and some memory
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Service:
    """Everything that requests share."""

    def __init__(self, options: ServeOptions, model: ServedModel) -> None:
        self.options, self.model = options, model
        self.pictures = None if options.no_pictures else Pictures(model)
        other_work = self.pictures.look_at_some if self.pictures else lambda: False
        self.batches = Batches(model.answer, model.batch, other_work)
        self.held, self.counts = Held(), Counts()
        self.threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="pictures")

    def stop(self) -> None:
        self.batches.stop()
        self.threads.shutdown(cancel_futures=True)

    async def decode(self, uploads: Sequence[Upload]) -> list[Picture]:
        loop, most = asyncio.get_running_loop(), self.options.pixels
        tasks = [loop.run_in_executor(self.threads, self.model.decode, *upload, most) for upload in uploads]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        pictures = []
        for upload, picture in zip(uploads, found, strict=True):
            if isinstance(picture, BadImage):
                raise HTTPException(422, f"{upload.name}: {picture}")
            if isinstance(picture, BaseException):
                raise picture
            pictures.append(picture)
        return pictures

    async def answer(self, pictures: Sequence[Picture], explain: bool) -> list[Answer]:
        try:
            futures = self.batches.submit(pictures, explain)
        except TooBusy as error:
            raise HTTPException(503, "too many images are waiting: try again", AGAIN) from error
        try:
            return list(await asyncio.gather(*map(asyncio.wrap_future, futures)))
        except UserError as error:  # a score that is not finite
            raise HTTPException(422, str(error)) from error

    def explain(self, answer: Answer) -> Explanation:
        near_target = self.pictures.near_target(answer) if self.pictures else []
        near_source = self.pictures.near_source(answer) if self.pictures else []
        return Explanation(
            seen=list(answer.seen),
            target=[_near(one) for one in near_target],
            source=[_near(one) for one in near_source],
            words=[WordMap(word=word.number, share=word.share, map=word.map) for word in answer.words],
        )

    def about(self) -> About:
        done, total = self.pictures.progress if self.pictures else (0, 0)
        return About(
            run=self.model.name,
            how=self.model.how,
            classes=list(self.model.info.classes),
            threshold=self.model.threshold,
            has_words=isinstance(self.model.method, SPA),
            source_done=done,
            source_all=total,
            is_ready=self.pictures is None or self.pictures.is_ready,
            image_bytes=self.options.image_bytes,
            pixels=self.options.pixels,
            images=self.options.images,
        )

    def metrics(self, in_flight: int) -> str:
        batches = self.batches
        counters = {"images_answered_total": batches.answered, "forward_passes_total": batches.passes}
        gauges = {"images_waiting": batches.waiting, "requests_in_flight": in_flight, "bytes_held": self.held.bytes}
        return self.counts.text(counters, gauges)


def make_app(service: Service, token: str | None) -> Gate:
    """The app behind its gate. Documentation pages are off: they load scripts from elsewhere."""
    app = FastAPI(
        title="unida serve",
        version=version("unida"),
        description="A class of the source or “unknown” for each image. With a token: `Authorization: Bearer TOKEN`.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host that the request named
    )
    gate = Gate(app, token, Rate(service.options.rate), service.counts)
    _add_page(app)
    _add_state(app, service, gate)
    _add_answers(app, service)

    @app.exception_handler(RequestValidationError)
    async def wrong_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg'].lower()}"}, 422)

    return gate


def _add_page(app: FastAPI) -> None:
    folder = resources.files("unida.serving") / "page"
    for path, (name, kind) in PAGE.items():
        data = (folder / name).read_bytes()
        app.add_route(path, partial(_static, data, kind), include_in_schema=False)


async def _static(data: bytes, kind: str, request: Request) -> Response:
    return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})


def _add_state(app: FastAPI, service: Service, gate: Gate) -> None:
    @app.get("/health", responses=problems(400, 503), summary="Is the server ready?")
    async def health(response: Response) -> Health:
        if gate.is_draining:
            response.status_code = 503
            return Health(status="draining")
        return Health(status="ready")

    @app.get("/about", responses=problems(400, 401, 429, 503), summary="The run: method, classes, limits")
    async def about() -> About:
        return service.about()

    described = content("text/plain") | problems(400, 401, 429, 503)

    @app.get("/metrics", response_class=Response, responses=described, summary="Numbers for Prometheus")
    async def metrics() -> Response:
        return Response(service.metrics(gate.in_flight), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_answers(app: FastAPI, service: Service) -> None:
    @app.post(
        "/predict",
        responses=problems(400, 401, 408, 413, 415, 422, 429, 503),
        openapi_extra=UPLOAD,
        summary="A class or “unknown” for each image",
    )
    async def predict(
        request: Request,
        explain: Annotated[bool, Query(description="Also say what each answer rests on")] = False,
    ) -> PredictAnswer:
        with service.held.for_request() as hold:
            uploads = await read_uploads(request, service.options, hold)
            pictures = await service.decode(uploads)
            try:
                hold(sum(picture.pixels.nbytes for picture in pictures))
            except NoRoom as error:
                raise HTTPException(503, "too many images at this moment: try again", AGAIN) from error
            answers = await service.answer(pictures, explain)
        explanations: list[Explanation | None] = [None] * len(answers)
        if explain:
            loop = asyncio.get_running_loop()
            tasks = [loop.run_in_executor(service.threads, service.explain, answer) for answer in answers]
            explanations = list(await asyncio.gather(*tasks))
        named = zip(pictures, answers, explanations, strict=True)
        return PredictAnswer(answers=[_named(*one) for one in named], threshold=service.model.threshold)

    described = content("image/jpeg") | problems(400, 401, 404, 429, 503)

    @app.get("/pictures/{picture}", response_class=Response, responses=described, summary="A small picture")
    async def picture(picture: str) -> Response:
        loop = asyncio.get_running_loop()
        small = None
        if service.pictures is not None:
            small = await loop.run_in_executor(service.threads, service.pictures.small, picture)
        if small is None:
            raise HTTPException(404, "there is no such picture")
        return Response(small, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _named(picture: Picture, answer: Answer, explanation: Explanation | None) -> ImageAnswer:
    return ImageAnswer(
        name=picture.name,
        label=answer.label,
        best_class=answer.best_class,
        probability=answer.probability,
        unknown_score=answer.unknown_score,
        is_of_target=answer.is_of_target,
        explanation=explanation,
    )


def _near(one: Near) -> NearPicture:
    return NearPicture(picture=f"pictures/{one.id}", text=one.text, weight=one.weight)
