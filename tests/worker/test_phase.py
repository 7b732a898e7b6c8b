"""The clock that tells the IO thread what the main thread is doing."""

from bramley.worker.phase import PhaseClock


def test_every_stamp_is_a_beat_and_busy_time_counts_from_the_last() -> None:
    now = [10.0]
    clock = PhaseClock(lambda: now[0])
    clock.stamp("loading")
    now[0] = 13.0
    assert (clock.beat.phase, clock.beat.count, clock.busy_s(clock.beat)) == ("loading", 1, 3.0)
    clock.stamp("decode")
    assert (clock.beat.phase, clock.beat.count, clock.busy_s(clock.beat)) == ("decode", 2, 0.0)


def test_a_thread_that_waits_for_messages_is_never_busy() -> None:
    now = [10.0]
    clock = PhaseClock(lambda: now[0])
    clock.stamp("idle")
    now[0] = 1e6
    assert clock.busy_s(clock.beat) == 0.0
