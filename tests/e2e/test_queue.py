"""A full queue says so at once, in the right shape, and what is in it is served in order."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.field import case
from tests.support.server import poll, serving

H10 = case("H10")


def test_a_full_queue_is_a_429_at_once_and_the_others_are_served_in_order(script_model: Path) -> None:
    with (
        serving(script_model, "--max-num-seqs", H10["max_num_seqs"], "--max-queue", H10["max_queue"]) as server,
        server.http() as client,
    ):
        answers: list[tuple[int, httpx.Response]] = []

        def ask(number: int) -> None:
            with server.http() as another:
                answers.append((number, another.post("/v1/chat/completions", json=_body(number % 2 == 1))))

        # This one runs until all the others have come.
        with client.stream("POST", "/v1/chat/completions", json=_body(True, max_tokens=60_000)) as first:
            assert first.status_code == 200
            lines = first.iter_lines()
            next(lines)
            threads = []
            for number in range(1, H10["sent"]):
                threads.append(threading.Thread(target=ask, args=(number,)))
                threads[-1].start()
                # Nothing outside shows that a request is queued; the order of arrival has to be made plain.
                time.sleep(0.2)
            refused = poll(lambda: list(answers), lambda found: len(found) == H10["sent"] - H10["served"], 30)
        for thread in threads:
            thread.join(120)
    served = answers[len(refused) :]
    assert [number for number, _ in served] == list(range(1, H10["served"]))
    assert {response.status_code for _, response in served} == {200}
    for _, response in refused:
        assert response.status_code == H10["status"]
        assert response.json()["error"]["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1


def _body(stream: bool, max_tokens: int = 700) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "loop"}], "max_tokens": max_tokens, "stream": stream}
