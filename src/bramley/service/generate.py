"""THE pipeline: every protocol's requests go through here, and come out as the same events."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import Self

import msgspec

from bramley.domain.errors import InvalidRequest, Overloaded, ServiceError, ShuttingDown, Timeout
from bramley.domain.events import Event, Finish
from bramley.domain.requests import ChatPrompt, GenerationRequest, Prompt
from bramley.domain.usage import Usage
from bramley.domain.wire import Finished, Submit
from bramley.parsers.pipeline import Pipeline
from bramley.service.budget import answer_tokens, check_length
from bramley.service.detokenizer import Detokenizer
from bramley.service.echo import Echo
from bramley.service.model_defaults import effective_sampling
from bramley.service.options import ServiceOptions
from bramley.service.pool import Lease, Pool
from bramley.workers.stream import TokenStream


class Generation:
    """One running answer. Iterate ``events``; leave the context and the worker stops working on it."""

    def __init__(
        self,
        stream: TokenStream,
        detokenizer: Detokenizer,
        pipeline: Pipeline,
        prompt_tokens: int,
        timeout_s: float,
        echo: Echo | None = None,
    ) -> None:
        """``timeout_s``: how long the worker may not get on with it, 0 for ever."""
        self.prompt_tokens = prompt_tokens
        self._stream = stream
        self._detokenizer = detokenizer
        self._pipeline = pipeline
        self._echo = echo
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s > 0:
            self._watch()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._stream.cancel()

    async def started(self, patience_s: float) -> None:
        """Wait for the first token at most ``patience_s``, so that an early failure can still be the whole answer.

        Raises RequestError, ServiceError.
        """
        await self._stream.started(patience_s)

    def nudge(self) -> None:
        """Let ``events`` yield an empty list soon, for a protocol that wants to show a sign of life."""
        self._stream.nudge()

    async def events(self) -> AsyncIterator[list[Event]]:
        """All events since the last read. The last one is Finish. Raises ServiceError.

        A list is empty only after ``nudge``; text that is held back, because it may be part of more, is no event.
        """
        while True:
            batch = await self._stream.next()
            events: list[Event] = []
            if self._echo is not None and (batch.token_ids or batch.finished is not None):
                events.append(self._echo.delta(self._stream.prompt_logprobs))
                self._echo = None
            events += self._pipeline.feed(self._detokenizer.feed(batch.token_ids, batch.logprobs))
            if self._pipeline.stopped is None and batch.finished is not None:
                events += self._pipeline.feed(self._detokenizer.finish())
                events += self._pipeline.finish()
                if self._pipeline.stopped is None:
                    yield [*events, self._finish(batch.finished)]
                    return
            if self._pipeline.stopped is not None:
                yield [*events, self._stop(batch.finished or await self._cut())]
                return
            if events or not batch.token_ids:
                yield events

    async def _cut(self) -> Finished:
        """End the sequence where the stop string ended the answer, and wait for the worker's account of it."""
        keep = self._pipeline.keep_tokens
        self._stream.cancel(keep_tokens=keep)
        try:
            return await self._stream.end()
        except ServiceError:
            # The answer is complete: a worker that dies now must not spoil it.
            return Finished(sequence=0, reason="cancelled", prompt_tokens=self.prompt_tokens, completion_tokens=keep)

    def _stop(self, finished: Finished) -> Finish:
        usage = _usage(finished, min(self._pipeline.keep_tokens, finished.completion_tokens))
        return Finish("stop", usage, finished.timings, self._pipeline.stopped)

    def _finish(self, finished: Finished) -> Finish:
        return Finish(finished.reason, _usage(finished, finished.completion_tokens), finished.timings)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._stream.progress_at + self._timeout_s - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._watch)
        else:
            self._stream.cancel()
            self._stream.fail(_timed_out(self._timeout_s))


class Generator:
    """Turns requests into running generations."""

    def __init__(self, pool: Pool, options: ServiceOptions, executor: Executor) -> None:
        self._pool = pool
        self._options = options
        self._executor = executor
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    async def open(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Begin all answers of all requests, or none; the requests are to one model and differ in their prompts only.

        Everything that can go wrong before the first byte goes wrong here. Raises RequestError, ServiceError.
        """
        if self._draining:
            raise ShuttingDown("The server is shutting down.")
        timeout_s = self._timeout_s(requests[0])
        try:
            async with asyncio.timeout(timeout_s if timeout_s > 0 else None):
                lease = await self._pool.find(requests[0].model).lease()
                prepared = [await self._prepare(request, lease) for request in requests]
        except TimeoutError:
            raise _timed_out(timeout_s) from None
        self._check_room(sum(request.answers for request in requests), lease.worker.active)
        return [
            self._begin(request, lease, ready, index)
            for request, ready in zip(requests, prepared, strict=True)
            for index in range(request.answers)
        ]

    async def _prepare(self, request: GenerationRequest, lease: Lease) -> "_Prepared":
        """Its token ids, and how many more there may be."""
        check_length(request.prompt, lease.tokenizer.longest_token, lease.context_length)
        token_ids = await asyncio.get_running_loop().run_in_executor(
            self._executor, lease.prompter.prepare, request.prompt
        )
        if not token_ids:
            raise InvalidRequest(
                "The prompt is empty: the model needs at least one token to go on from.", param="prompt"
            )
        _check_token_ids(request, lease.worker.ready.vocab_size)
        max_tokens = answer_tokens(len(token_ids), request.max_tokens, lease.context_length, self._options.defaults)
        return _Prepared(token_ids, max_tokens)

    def _check_room(self, wanted: int, active: int) -> None:
        most = self._options.max_in_flight
        if wanted > most:
            raise InvalidRequest(f"The request asks for {wanted} answers; this server works on {most} at once.")
        if active + wanted > most:
            raise Overloaded(f"The server has {active} requests running or waiting already; try again in a moment.")

    def _timeout_s(self, request: GenerationRequest) -> float:
        return self._options.timeout_s if request.timeout_s is None else request.timeout_s

    def _begin(self, request: GenerationRequest, lease: Lease, prepared: "_Prepared", index: int) -> Generation:
        stream = lease.worker.submit(
            lambda sequence: self._submit(sequence, request, lease, prepared, index),
            self._options.stream_buffer_tokens,
        )
        return Generation(
            stream,
            lease.tokenizer.detokenizer(continues=_continues(request.prompt)),
            Pipeline(request.stop),
            len(prepared.token_ids),
            self._timeout_s(request),
            Echo.of(request, prepared.token_ids, lease.tokenizer) if request.echo else None,
        )

    def _submit(
        self, sequence: int, request: GenerationRequest, lease: Lease, prepared: "_Prepared", index: int
    ) -> Submit:
        sampling = effective_sampling(request, self._options.defaults, lease.defaults, secrets.randbits(63), index)
        own_stops = {*lease.worker.ready.eos_token_ids, *lease.tokenizer.eos_token_ids}
        return Submit(
            sequence=sequence,
            token_ids=prepared.token_ids,
            max_tokens=prepared.max_tokens,
            sampling=sampling,
            stop_token_ids=(*request.stop_token_ids, *(() if sampling.ignore_eos else sorted(own_stops))),
            grammar=request.grammar,
            priority=request.priority,
            cache_salt=request.cache_salt,
            use_cache=request.use_cache,
        )


class _Prepared(msgspec.Struct, frozen=True):
    token_ids: tuple[int, ...]
    max_tokens: int


def _continues(prompt: Prompt) -> bool:
    """Whether the answer goes on in the middle of a text, where a leading space is part of it."""
    return not isinstance(prompt, ChatPrompt) or prompt.continue_last


def _check_token_ids(request: GenerationRequest, vocab_size: int) -> None:
    """Raises InvalidRequest for an id the model does not have: it could have no effect."""
    for param, ids in (("logit_bias", request.sampling.logit_bias), ("stop_token_ids", request.stop_token_ids)):
        unknown = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
        if unknown is not None:
            raise InvalidRequest(
                f"{param}: the model has no token {unknown}; its ids go from 0 to {vocab_size - 1}.", param=param
            )


def _usage(finished: Finished, completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=finished.cached_tokens,
        cache_write_tokens=finished.cache_write_tokens,
    )


def _timed_out(seconds: float) -> Timeout:
    return Timeout(f"Request timed out after {seconds:g} seconds")
