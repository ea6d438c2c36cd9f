# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: routes, key, errors. It runs in the event loop of the run that it belongs to."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from rlrun.errors import ConfigError, DataError, GenerationError, Problem
from rlrun.interfaces import Generator, PolicyAddress
from rlrun.rendering.renderer import Renderer
from rlrun.seeds import seed_of
from rlrun.serve.address import url_of
from rlrun.serve.answer import AnswerMaker, Asked, JsonObject
from rlrun.serve.conversation import PromptMaker, read_conversation
from rlrun.serve.errors import ApiError, bad_request, context_full
from rlrun.serve.fields import Fields
from rlrun.serve.intake import Intake
from rlrun.serve.parsers import ReasoningParser, ToolParser
from rlrun.serve.request import ChatRequest, Limits, read_chat_request
from rlrun.serve.sampled import EpisodeOver, SampledLog
from rlrun.types import Completion, GenerationRequest

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 2**20
"""Agents send the token ids of every turn with every request, so bodies grow with the square of
the number of turns."""

SHUTDOWN_S = 1.0
"""Time for answers that are being sent when the server is closed."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server is told of its run.

    Attributes:
        host: Address or name to listen on.
        port: Of the first engine; the others follow. 0 for free ones.
        api_key: What clients must know.
        names: What the model may be called in requests; the first is the main one.
        limits: What requests are checked against.
        seed: Of the draws; no other server of the run, before a resume or after, may have it.
        shares_weights: The generator samples from weights that updates change in place, so nothing
            may be sampled meanwhile.
    """

    host: str
    port: int
    api_key: str
    names: tuple[str, ...]
    limits: Limits
    seed: int
    shares_weights: bool


class PolicyServer:
    """Serves a generator at an address for each of its engines.

    Made by ``start``. Requests wait until the first ``release``.

    Attributes:
        base_urls: One per engine, each ending in /v1. An engine that is started again keeps its
            own; while it is gone another one answers there.
    """

    def __init__(
        self,
        settings: ServerSettings,
        generator: Generator,
        renderer: Renderer,
        tool_parser: ToolParser | None,
        reasoning_parser: ReasoningParser | None,
    ) -> None:
        self._settings, self._sampled = settings, SampledLog()
        self._intakes = tuple(map(Intake, generator.engine_views()))
        self._intake_at: dict[int, Intake] = {}
        self._renderer = renderer
        self._prompts = PromptMaker(renderer)
        self._answers = AnswerMaker(renderer, tool_parser, reasoning_parser)
        self._started = int(time.time())
        self._count = 0
        app = web.Application(
            client_max_size=MAX_BODY_BYTES, middlewares=[self._refuse_in_json, self._authorize]
        )
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        # A client that hangs up cancels its handler, and with it what is sampled for it.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
        )
        self.base_urls: tuple[str, ...] = ()

    @classmethod
    async def start(
        cls,
        settings: ServerSettings,
        generator: Generator,
        renderer: Renderer,
        tool_parser: ToolParser | None,
        reasoning_parser: ReasoningParser | None,
    ) -> PolicyServer:
        """Listens, at a port for each engine.

        Raises:
            ConfigError: An address is taken, or none of this machine.
        """
        server = cls(settings, generator, renderer, tool_parser, reasoning_parser)
        await server._runner.setup()
        for index, intake in enumerate(server._intakes):
            await server._listen(settings.port + index if settings.port else 0, intake)
        return server

    async def _listen(self, port: int, intake: Intake) -> None:
        host, before = self._settings.host, len(self._runner.addresses)
        try:
            await web.TCPSite(self._runner, host, port).start()
        except (OSError, OverflowError) as error:
            await self._runner.cleanup()
            where = f"generation.http.host={host}, port={port}"
            what = f"the HTTP server cannot listen there: {error}"
            remedy = "Give an address of this machine and a free port; port=0 finds one"
            if len(self._intakes) > 1:
                remedy += f". Each of {len(self._intakes)} engines has one, the next after the last"
            raise ConfigError([Problem(where, what, remedy)]) from error
        # A name may stand for several addresses of this machine.
        ports = [address[1] for address in self._runner.addresses[before:]]
        self._intake_at |= dict.fromkeys(ports, intake)
        self.base_urls += (url_of(host, ports[0]) + "/v1",)

    @property
    def base_url(self) -> str:
        """Where the first engine answers."""
        return self.base_urls[0]

    @property
    def model(self) -> str:
        """The name that the model is asked for by."""
        return self._settings.names[0]

    @property
    def parses_reasoning(self) -> bool:
        """Whether reasoning is set apart from the answer."""
        return self._answers.parses_reasoning

    def address(self, folder: Path | None, ray_address: str | None = None) -> PolicyAddress:
        """What an environment is told of this server.

        Args:
            folder: Where logs of the environment go; None for a temporary folder.
            ray_address: Of the run's Ray cluster.
        """
        return PolicyAddress(
            base_urls=self.base_urls,
            api_key=self._settings.api_key,
            model=self.model,
            parses_reasoning=self.parses_reasoning,
            sampled=self._sampled,
            folder=folder,
            ray_address=ray_address,
        )

    async def hold(self) -> None:
        """Before the learner's weights change: waits until nothing samples from them.

        Requests wait for ``release``. A generator with weights of its own goes on.
        """
        if self._settings.shares_weights:
            await asyncio.gather(*(intake.hold() for intake in self._intakes))

    def release(self) -> None:
        """The generator has the weights that it is to sample from."""
        for intake in self._intakes:
            intake.release()

    def replace(self, generator: Generator) -> None:
        """Answers with other engines from now on, as many, at the same addresses.

        What the former ones have not answered is asked again.
        """
        for intake, engine in zip(self._intakes, generator.engine_views(), strict=True):
            intake.replace(engine)

    async def close(self) -> None:
        """Ends running requests and stops listening. May be called twice."""
        await asyncio.gather(*(intake.close() for intake in self._intakes))
        await self._runner.cleanup()

    # --- around every request ---------------------------------------------------------------------

    @web.middleware
    async def _refuse_in_json(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Errors as the OpenAI API has them; only what is refused is logged."""
        try:
            return await handler(request)
        except ApiError as error:
            refusal = error
        except web.HTTPException as error:
            refusal = ApiError(error.status, error.reason)
        except DataError as error:
            refusal = bad_request(str(error), "messages")
        except GenerationError as error:
            refusal = ApiError(500, str(error), code="generation_failed")
        # The boundary: a mistake of ours in one request must not end the run.
        except Exception as error:
            log.exception("a request failed")
            refusal = ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")
        log.info("%d %s %s: %s", refusal.status, request.method, request.raw_path, refusal.message)
        return web.json_response(refusal.body(), status=refusal.status)

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if not hmac.compare_digest(given, f"Bearer {self._settings.api_key}".encode()):
            message = "The API key is missing or wrong: send Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")
        return await handler(request)

    # --- routes -----------------------------------------------------------------------------------

    async def _models(self, request: web.Request) -> web.StreamResponse:
        main, *_ = self._settings.names
        entries = [
            {
                "id": name,
                "object": "model",
                "created": self._started,
                "owned_by": "rlrun",
                "root": main,
                "max_model_len": self._settings.limits.context,
            }
            for name in self._settings.names
        ]
        return web.json_response({"object": "list", "data": entries})

    async def _tokenize(self, request: web.Request) -> web.StreamResponse:
        """Token ids of a prompt, or of messages as ``_chat`` would have them."""
        fields = Fields(await request.read())
        model = fields.text("model")
        if model is not None:
            self._check_model(model)
        text = fields.text("prompt")
        if text is None:
            conversation = read_conversation(fields, self._settings.limits.vocabulary)
            tokens = list(self._prompts(conversation))
        else:
            tokens = self._renderer.tokenizer(
                text, add_special_tokens=fields.flag("add_special_tokens", default=True)
            )["input_ids"]
        texts = None
        if fields.flag("return_token_strs"):
            texts = self._renderer.tokenizer.convert_ids_to_tokens(tokens)
        fields.finish()
        context = self._settings.limits.context
        answer = {"tokens": tokens, "count": len(tokens), "max_model_len": context}
        return web.json_response(answer | {"token_strs": texts})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None, "the client has not hung up yet"
        port = request.transport.get_extra_info("sockname")[1]
        asked = self._ask(read_chat_request(Fields(await request.read()), self._settings.limits))
        completions = await self._sample(asked, self._intake_at[port])
        if not asked.request.stream:
            return web.json_response(self._answers.whole(asked, completions), dumps=_dumps)
        events = [_dumps(event) for event in self._answers.events(asked, completions)]
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        for event in (*events, "[DONE]"):
            await response.write(f"data: {event}\n\n".encode())
        await response.write_eof()
        return response

    def _ask(self, request: ChatRequest) -> Asked:
        self._check_model(request.model)
        prompt = self._prompts(request.conversation)
        context = self._settings.limits.context
        if not prompt:
            raise bad_request("the messages render to no tokens", "messages")
        if len(prompt) >= context:
            raise context_full(context, len(prompt))
        # A client's seed means the same draw in every run; others are the run's, one after another.
        if request.seed is not None:
            key = f"{seed_of('client', request.seed, prompt):016x}"
        else:
            key = f"{seed_of('run', self._settings.seed, self._count):016x}"
            self._count += 1
        return Asked(
            replace(request, max_new_tokens=min(request.max_new_tokens, context - len(prompt))),
            prompt,
            key,
        )

    def _check_model(self, name: str) -> None:
        if name not in self._settings.names:
            names = " or ".join(self._settings.names)
            raise ApiError(
                404,
                f"The model {name!r} does not exist; this run serves {names}",
                param="model",
                code="model_not_found",
            )

    async def _sample(self, asked: Asked, intake: Intake) -> list[Completion]:
        request = asked.request
        work = intake.generate(
            [
                GenerationRequest(
                    token_ids=asked.prompt,
                    max_new_tokens=request.max_new_tokens,
                    seed=seed_of(asked.key, choice),
                    sampling=request.sampling,
                )
                for choice in range(request.choices)
            ]
        )
        if request.seed is None:
            return await work
        try:
            return await self._sampled.watch(request.seed, asked.prompt, work)
        except EpisodeOver:
            # No status that clients try again.
            raise ApiError(410, "The episode that asks is over", code="episode_over") from None


def _dumps(answer: JsonObject) -> str:
    # A log-prob that is not finite must not reach a trainer as something else.
    return json.dumps(answer, allow_nan=False)
