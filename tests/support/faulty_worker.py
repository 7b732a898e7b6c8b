"""A worker process whose model is a counter that misbehaves on command: the real main loop, socket and signals, no MLX.

``python tests/support/faulty_worker.py --fd N --mode MODE [--seconds S]``

Token k of an answer is ``100 + k % 100``; each step gives every sequence one token and takes ``--step-s`` seconds.
A prompt that contains token 13 is the trigger of the modes that concern steps.
"""

import argparse
import os
import signal
import time
from pathlib import Path

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import (
    Cancel,
    ComputeOptions,
    Failed,
    FailureKind,
    Finished,
    FrontMessage,
    Load,
    Phase,
    Ready,
    Row,
    SequenceStats,
    Stats,
    Step,
    Submit,
)
from bramley.runners.base import Host
from bramley.worker.blas import BlasReport
from bramley.worker.main import run

TRIGGER = 13
MODES = {
    "good": "never misbehaves",
    "once": "the first step with a trigger in flight raises, later ones do not",
    "always": "every step with a trigger in flight raises",
    "memory": "every step with a trigger in flight raises MemoryError",
    "hang": "a step with a trigger in flight takes --seconds",
    "die": "a step with a trigger in flight kills the process",
    "slow-load": "loading takes --seconds, with progress all the time",
    "stuck-load": "loading takes --seconds, without any progress",
    "fail-load": "loading raises ModelLoadError",
    "bug-load": "loading raises ZeroDivisionError",
    "memory-load": "loading raises MemoryError",
    "die-on-load": "loading kills the process",
}


class FaultyRunner:
    """Implements ``Runner``."""

    def __init__(self, mode: str, seconds: float, step_s: float) -> None:
        self._mode = mode
        self._seconds = seconds
        self._step_s = step_s
        self._sequences: dict[int, Submit] = {}
        self._generated: dict[int, int] = {}
        self._steps = 0
        self._finished = 0
        self._host: Host

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def phase(self) -> Phase:
        return "decode" if self._sequences else "idle"

    def load(self, load: Load, host: Host) -> Ready:
        self._host = host
        match self._mode:
            case "slow-load":
                for tick in range(50):
                    host.progress("loading", tick, 50)
                    time.sleep(self._seconds / 50)
                host.progress("loading", 50, 50)
            case "stuck-load":
                time.sleep(self._seconds)
            case "fail-load":
                raise ModelLoadError("The model is broken on purpose.")
            case "bug-load":
                raise ZeroDivisionError("a bug in a loader")
            case "memory-load":
                raise MemoryError("no room")
            case "die-on-load":
                os.kill(os.getpid(), signal.SIGKILL)
        return Ready(path=load.path, model_type="counter", context_length=4096, vocab_size=256, eos_token_ids=(2,))

    def handle(self, message: FrontMessage) -> None:
        match message:
            case Submit():
                self._sequences[message.sequence] = message
                self._generated[message.sequence] = 0
            case Cancel() if message.sequence in self._sequences:
                self._finish(message.sequence, "cancelled", message.keep_tokens)

    def step(self) -> None:
        time.sleep(self._step_s)
        if any(TRIGGER in submit.token_ids for submit in self._sequences.values()):
            self._misbehave()
        self._host.emit(Step(tuple(Row(number, (100 + count % 100,)) for number, count in self._generated.items())))
        self._steps += 1
        for number, submit in tuple(self._sequences.items()):
            self._generated[number] += 1
            if self._generated[number] >= submit.max_tokens:
                self._finish(number, "length")

    def abort(self, kind: FailureKind, reason: str) -> None:
        for number in self._sequences:
            self._host.emit(Failed(kind=kind, message=reason, sequence=number))
        self._sequences.clear()
        self._generated.clear()

    def shutdown(self) -> None:
        for number in tuple(self._sequences):
            self._finish(number, "cancelled")

    def stats(self) -> Stats:
        return Stats(
            running=len(self._sequences),
            steps=self._steps,
            finished=self._finished,
            sequences=tuple(
                SequenceStats(
                    sequence=number,
                    phase="generation",
                    prompt_tokens=len(submit.token_ids),
                    prefilled_tokens=len(submit.token_ids),
                    generated_tokens=self._generated[number],
                    max_tokens=submit.max_tokens,
                )
                for number, submit in self._sequences.items()
            ),
        )

    def _misbehave(self) -> None:
        match self._mode:
            case "once":
                self._mode = "good"
                raise RuntimeError("broken on purpose")
            case "always":
                raise RuntimeError("broken on purpose")
            case "memory":
                raise MemoryError("no room")
            case "hang":
                time.sleep(self._seconds)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)

    def _finish(self, number: int, reason: str, keep_tokens: int | None = None) -> None:
        submit = self._sequences.pop(number)
        count = self._generated.pop(number)
        self._finished += 1
        self._host.emit(
            Finished(
                sequence=number,
                reason="length" if reason == "length" else "cancelled",
                prompt_tokens=len(submit.token_ids),
                completion_tokens=count if keep_tokens is None else min(keep_tokens, count),
            )
        )


def no_blas(compute: ComputeOptions, cache_dir: Path) -> BlasReport:
    return BlasReport(name="none", threads=1, notes=())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--mode", choices=MODES, default="good")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--step-s", type=float, default=0.002)
    args = parser.parse_args()
    run(args.fd, {"text": lambda: FaultyRunner(args.mode, args.seconds, args.step_s)}, no_blas)


if __name__ == "__main__":
    main()
