"""A full queue says so at once, in the right shape, and what is in it is served in order."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.field import case
from tests.support.server import serving

H10 = case("H10")


def test_a_full_queue_is_a_429_at_once_and_the_others_are_served_in_order(script_model: Path) -> None:
    with serving(script_model, "--max-num-seqs", H10["max_num_seqs"], "--max-queue", H10["max_queue"]) as server:
        answers: list[tuple[int, httpx.Response]] = []

        def ask(number: int, body: dict[str, Any]) -> None:
            with server.http() as client:
                answers.append((number, client.post("/v1/chat/completions", json=body)))

        threads = []
        for number in range(H10["sent"]):
            stream = number % 2 == 1
            body = {"messages": [{"role": "user", "content": "loop"}], "max_tokens": 700, "stream": stream}
            threads.append(threading.Thread(target=ask, args=(number, body)))
            threads[-1].start()
            # Nothing outside shows that a request is queued; the order of arrival has to be made plain.
            time.sleep(0.2)
        for thread in threads:
            thread.join(120)
        served = [number for number, response in answers if response.status_code == 200]
        refused = [response for _, response in answers if response.status_code == H10["status"]]
        assert served == list(range(H10["served"]))
        assert len(refused) == H10["sent"] - H10["served"]
        for response in refused:
            assert response.json()["error"]["code"] == "queue_full"
            assert int(response.headers["retry-after"]) >= 1
