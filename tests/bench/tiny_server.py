"""A real HTTP server with as little behind it as a load client can do with: ``tiny_server.py PORT [DELAY_S]``.

It streams ``max_tokens`` words, one each DELAY_S; refuses a prompt that holds "refuse"; and stops in the middle,
without an end, at one that holds "break off".
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class TinyServer:
    """The ASGI application. ``delay_s``: seconds between two words."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/v1/models":
            await _whole(send, 200, {"object": "list", "data": [{"id": "tiny"}]})
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body)
        prompt = request["messages"][-1]["content"]
        if "refuse" in prompt:
            await _whole(send, 400, {"error": {"message": "refused"}})
        else:
            await self._stream(prompt, request["max_tokens"], receive, send)

    async def _stream(self, prompt: str, words: int, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await _event(send, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        for number in range(words):
            await asyncio.sleep(self._delay_s)
            if gone.done() or ("break off" in prompt and number == 2):
                raise ConnectionAbortedError
            await _event(send, {"choices": [{"index": 0, "delta": {"content": f"w{number} "}, "finish_reason": None}]})
        await _event(send, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": words}
        await _event(send, {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 3}}})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _event(send: Send, chunk: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": f"data: {json.dumps(chunk)}\n\n".encode(), "more_body": True})


async def _whole(send: Send, status: int, value: dict[str, Any]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(value).encode()})


if __name__ == "__main__":
    delay_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.001
    uvicorn.run(TinyServer(delay_s), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
