"""Who computes when. No model, no MLX; time is what the test says."""

from typing import Any

import pytest

from bramley.domain.errors import Overloaded
from bramley.domain.requests import Priority
from bramley.domain.sampling import Sampling
from bramley.engine.kv import KvCost
from bramley.engine.pace import Pace
from bramley.engine.scheduler import Limits, Scheduler, StepPlan
from bramley.engine.sequence import Sequence

ENDLESS = 1e9


def sequence(
    number: int, prompt: int = 10, priority: Priority = "normal", at: float = 0.0, answer: int = 100
) -> Sequence:
    return Sequence(number, tuple(range(prompt)), answer, Sampling(), frozenset(), at, priority)


def scheduler_of(slots: int = 4, queue: int = 10, chunk: int = 16, kv: int = 10**9, cost: Any = None) -> Scheduler:
    return Scheduler(Limits(slots, queue, kv), cost or KvCost(full=1), Pace(limit=chunk, target_gap_s=ENDLESS))


def warm(scheduler: Scheduler) -> Scheduler:
    """Let the pace know a rate, so that an endless gap gives the whole chunk."""
    scheduler._pace.read(1000, 1.0)
    return scheduler


def carry_out(plan: StepPlan) -> None:
    """Read and draw as the engine does, the tokens of a step known before the next."""
    drawn = list(plan.decode)
    for one, count in plan.prefill:
        one.read_on(count)
        if one.is_prefilled:
            drawn.append(one)
    for one in drawn:
        one.append(7, 0.0)


def shares(plan: StepPlan) -> list[tuple[int, int]]:
    return [(one.number, count) for one, count in plan.prefill]


def numbers(sequences: tuple[Sequence, ...]) -> list[int]:
    return [one.number for one in sequences]


def test_the_first_to_come_runs_first_and_as_many_as_there_are_slots() -> None:
    scheduler = scheduler_of(slots=2)
    for number in (1, 2, 3):
        scheduler.add(sequence(number))
    assert numbers(scheduler.plan(0).admit) == [1, 2]
    assert numbers(scheduler.waiting) == [3]


def test_the_prompt_tokens_of_a_step_are_bounded_in_total_and_go_to_the_shortest() -> None:
    scheduler = warm(scheduler_of(chunk=32))
    for number, length in ((1, 60), (2, 20), (3, 24)):
        scheduler.add(sequence(number, length))
    seen = []
    while (plan := scheduler.plan(0)).prefill:
        seen.append(shares(plan))
        carry_out(plan)
    # 12 tokens of another prompt are not worth a pass.
    assert seen == [[(2, 20)], [(3, 24)], [(1, 32)], [(1, 28)]]


def test_what_the_first_prompt_leaves_goes_to_a_second_when_it_is_worth_a_pass() -> None:
    for chunk, expected in ((64, [(3, 5), (1, 10), (2, 49)]), (32, [(3, 5), (1, 10)])):
        scheduler = warm(scheduler_of(chunk=chunk))
        for number, length in ((1, 10), (2, 200), (3, 5)):
            scheduler.add(sequence(number, length))
        assert shares(scheduler.plan(0)) == expected


def test_a_short_prompt_does_not_wait_behind_a_long_one_that_is_read_already() -> None:
    scheduler = warm(scheduler_of(chunk=16))
    scheduler.add(sequence(1, 1500))
    for _ in range(3):
        carry_out(scheduler.plan(0))
    scheduler.add(sequence(2, 3, at=1))
    assert shares(scheduler.plan(1)) == [(2, 3)]


def test_a_long_prompt_gets_on_although_short_ones_keep_coming() -> None:
    scheduler = warm(scheduler_of(slots=100, chunk=16))
    long = sequence(0, 1500)
    scheduler.add(long)
    for number in range(1, 60):
        scheduler.add(sequence(number, 16, at=number))
        carry_out(scheduler.plan(number))
    assert long.prefilled > 0


def test_a_prompt_that_ends_in_a_step_decodes_from_the_next_on() -> None:
    scheduler = warm(scheduler_of())
    scheduler.add(sequence(1))
    plan = scheduler.plan(0)
    assert (shares(plan), plan.decode) == ([(1, 10)], ())
    carry_out(plan)
    scheduler.add(sequence(2, 40))
    plan = scheduler.plan(0)
    assert (shares(plan), numbers(plan.decode)) == ([(2, 16)], [1])


@pytest.mark.parametrize(("length", "steps"), [(20, [20]), (21, [16, 5]), (36, [16, 20])])
def test_a_prompt_that_nearly_ends_with_the_budget_is_ended_with_it(length: int, steps: list[int]) -> None:
    scheduler = warm(scheduler_of(chunk=16))
    scheduler.add(sequence(1, length))
    seen = []
    while (plan := scheduler.plan(0)).prefill:
        seen += [count for _, count in shares(plan)]
        carry_out(plan)
    assert seen == steps


def test_a_sequence_whose_last_token_is_in_flight_does_not_decode() -> None:
    scheduler = scheduler_of()
    one = sequence(1, answer=2)
    scheduler.add(one)
    carry_out(scheduler.plan(0))
    assert numbers(scheduler.plan(0).decode) == [1]
    one.in_flight = 1
    assert scheduler.plan(0) == StepPlan()
    assert not scheduler.has_next


def test_the_queue_is_bounded_and_a_free_slot_needs_no_place_in_it() -> None:
    scheduler = scheduler_of(slots=2, queue=1)
    for number in (1, 2, 3):
        scheduler.add(sequence(number))
    with pytest.raises(Overloaded):
        scheduler.add(sequence(4))
    scheduler.plan(0)
    with pytest.raises(Overloaded):
        scheduler.add(sequence(4))
    scheduler.remove(scheduler.running[0])
    scheduler.add(sequence(5))


def test_removed_sequences_are_gone_wherever_they_were() -> None:
    scheduler = scheduler_of(slots=1)
    first, second = sequence(1), sequence(2)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.plan(0)
    scheduler.remove(first)
    scheduler.remove(second)
    assert (scheduler.waiting, scheduler.running, scheduler.kv_reserved) == ((), (), 0)
    assert scheduler.plan(0) == StepPlan()


def test_a_waiting_prompt_that_can_run_means_that_the_next_step_reads_one() -> None:
    scheduler = scheduler_of(slots=1)
    scheduler.add(sequence(1))
    assert scheduler.is_prefilling
    carry_out(scheduler.plan(0))
    scheduler.add(sequence(2))
    assert not scheduler.is_prefilling


def test_a_higher_class_goes_first_and_waiting_promotes() -> None:
    scheduler = scheduler_of(slots=1)
    scheduler.add(sequence(0, priority="high"))
    scheduler.plan(0)
    classes: list[tuple[int, Priority]] = [(1, "batch"), (2, "normal"), (3, "high")]
    for number, priority in classes:
        scheduler.add(sequence(number, priority=priority))
    order = []
    for now in (1, 2, 3):
        scheduler.remove(scheduler.running[0])
        order += numbers(scheduler.plan(now).admit)
    assert order == [3, 2, 1]


def test_a_batch_request_that_waited_long_comes_before_newer_ones_of_any_class() -> None:
    scheduler = scheduler_of(slots=1)
    scheduler.add(sequence(0, priority="high"))
    scheduler.plan(0)
    scheduler.add(sequence(1, priority="batch", at=0))
    scheduler.add(sequence(2, priority="high", at=21))
    scheduler.remove(scheduler.running[0])
    assert numbers(scheduler.plan(21).admit) == [1]


def test_who_does_not_fit_into_memory_waits_and_is_not_overtaken() -> None:
    scheduler = scheduler_of(kv=400)
    scheduler.add(sequence(1, 200))
    scheduler.add(sequence(2, 200))
    scheduler.add(sequence(3, 1, answer=1))
    assert numbers(scheduler.plan(0).admit) == [1]
    assert scheduler.plan(0).admit == ()
    scheduler.remove(scheduler.running[0])
    assert numbers(scheduler.plan(0).admit) == [2, 3]


def test_of_a_long_answer_256_tokens_are_counted_on() -> None:
    scheduler = scheduler_of(kv=1000)
    scheduler.add(sequence(1, 100, answer=10**6))
    scheduler.plan(0)
    assert scheduler.kv_reserved == 356


@pytest.mark.parametrize(
    ("cost", "tokens", "expected"),
    [
        (KvCost(full=10), 100, 1000),
        (KvCost(windows=((32, 10),)), 100, 320),
        (KvCost(windows=((32, 10),)), 5, 50),
        (KvCost(state=77), 100, 77),
        (KvCost(10, ((32, 1), (64, 2)), 5), 100, 1000 + 32 + 128 + 5),
    ],
)
def test_each_kind_of_layer_costs_what_it_keeps(cost: KvCost, tokens: int, expected: int) -> None:
    assert cost.of(tokens) == expected


def test_what_can_never_fit_is_told_with_both_numbers() -> None:
    scheduler = scheduler_of(kv=2**20, cost=KvCost(full=2**14))
    message = scheduler.misfit(sequence(1, 100))
    assert message is not None
    assert "3.1 MiB" in message
    assert "1.0 MiB" in message
    assert scheduler.misfit(sequence(2, 10, answer=10)) is None


def grown(scheduler: Scheduler, steps: int) -> list[StepPlan]:
    plans = []
    for _ in range(steps):
        plans.append(scheduler.plan(0))
        carry_out(plans[-1])
    return plans


def test_answers_that_outgrow_memory_send_the_newest_of_the_lowest_class_back() -> None:
    scheduler = warm(scheduler_of(kv=2 * 300 + 20))
    for number in (1, 2):
        scheduler.add(sequence(number, 10, answer=5000, at=number))
    plans = grown(scheduler, 400)
    assert [numbers(plan.preempt) for plan in plans if plan.preempt] == [[2]]
    assert numbers(scheduler.running) == [1]
    (back,) = scheduler.waiting
    assert (back.prefilled, back.preemptions, back.phase) == (0, 1, "queued")
    assert len(back.generated) > 256


def test_a_preempted_sequence_reads_prompt_and_answer_again_and_goes_on() -> None:
    one = sequence(1, 5)
    one.admit(0.0)
    one.read_on(5)
    for token in (50, 51, 52):
        one.append(token, 0.0)
    one.preempt()
    one.admit(1.0)
    assert one.prompt_left == 8
    assert one.read_on(6) == (0, 1, 2, 3, 4, 50)
    assert one.read_on(2) == (51, 52)
    assert one.is_prefilled
    assert one.admitted_at == 0.0


def test_the_last_one_running_is_never_preempted_and_nobody_more_than_twice() -> None:
    scheduler = warm(scheduler_of(kv=300))
    scheduler.add(sequence(1, 10, answer=5000))
    assert not any(plan.preempt for plan in grown(scheduler, 600))
    scheduler = warm(scheduler_of(kv=600))
    tired = sequence(2, 10, answer=5000)
    tired.preemptions = 2
    scheduler.add(sequence(1, 10, answer=5000))
    scheduler.add(tired)
    assert [numbers(plan.preempt) for plan in grown(scheduler, 400) if plan.preempt] == [[1]]


def test_a_higher_class_takes_the_place_of_the_newest_of_the_lowest() -> None:
    scheduler = scheduler_of(slots=3)
    classes: list[tuple[int, Priority]] = [(1, "normal"), (2, "batch"), (3, "batch")]
    for number, priority in classes:
        scheduler.add(sequence(number, priority=priority, at=number))
    scheduler.plan(3)
    scheduler.add(sequence(4, priority="high", at=4))
    plan = scheduler.plan(4)
    assert (numbers(plan.preempt), numbers(plan.admit)) == ([3], [4])
    scheduler.add(sequence(5, priority="batch", at=5))
    assert scheduler.plan(60).preempt == ()


def test_nobody_is_preempted_for_one_who_would_not_fit_all_the_same() -> None:
    scheduler = scheduler_of(slots=4, kv=1000)
    scheduler.add(sequence(1, 500, priority="high"))
    scheduler.add(sequence(2, 100, priority="batch"))
    scheduler.plan(0)
    scheduler.add(sequence(3, 800, priority="high"))
    plan = scheduler.plan(0)
    assert (plan.preempt, plan.admit) == ((), ())
