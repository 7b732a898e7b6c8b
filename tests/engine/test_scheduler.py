"""Who computes when. No model, no MLX."""

import pytest

from bramley.domain.errors import Overloaded
from bramley.domain.sampling import Sampling
from bramley.engine.scheduler import Scheduler, StepPlan
from bramley.engine.sequence import Sequence


def sequence(number: int, prompt: int = 10) -> Sequence:
    return Sequence(number, tuple(range(prompt)), 100, Sampling(), frozenset(), 0.0)


def carry_out(plan: StepPlan) -> None:
    for one, count in plan.prefill:
        one.prefilled += count


def shares(plan: StepPlan) -> list[tuple[int, int]]:
    return [(one.number, count) for one, count in plan.prefill]


def test_the_first_to_come_runs_first_and_as_many_as_there_are_slots() -> None:
    scheduler = Scheduler(max_num_seqs=2, max_queue=10, chunk=100)
    for number in (1, 2, 3):
        scheduler.add(sequence(number))
    assert [one.number for one in scheduler.plan().admit] == [1, 2]
    assert [one.number for one in scheduler.waiting] == [3]


def test_the_prompt_tokens_of_a_step_are_bounded_in_total_and_go_to_the_first() -> None:
    scheduler = Scheduler(max_num_seqs=4, max_queue=10, chunk=16)
    for number in (1, 2, 3):
        scheduler.add(sequence(number, 10))
    seen = []
    while (plan := scheduler.plan()).prefill:
        seen.append(shares(plan))
        carry_out(plan)
    assert seen == [[(1, 10), (2, 6)], [(2, 4), (3, 10)]]


def test_a_prompt_that_ends_in_a_step_decodes_from_the_next_on() -> None:
    scheduler = Scheduler(max_num_seqs=4, max_queue=10, chunk=16)
    scheduler.add(sequence(1))
    plan = scheduler.plan()
    assert (shares(plan), plan.decode) == ([(1, 10)], ())
    carry_out(plan)
    scheduler.add(sequence(2, 20))
    plan = scheduler.plan()
    assert (shares(plan), [one.number for one in plan.decode]) == ([(2, 16)], [1])


def test_the_queue_is_bounded_and_a_free_slot_needs_no_place_in_it() -> None:
    scheduler = Scheduler(max_num_seqs=2, max_queue=1, chunk=16)
    for number in (1, 2, 3):
        scheduler.add(sequence(number))
    with pytest.raises(Overloaded):
        scheduler.add(sequence(4))
    scheduler.plan()
    with pytest.raises(Overloaded):
        scheduler.add(sequence(4))
    scheduler.remove(scheduler.running[0])
    scheduler.add(sequence(5))


def test_removed_sequences_are_gone_wherever_they_were() -> None:
    scheduler = Scheduler(max_num_seqs=1, max_queue=10, chunk=16)
    first, second = sequence(1), sequence(2)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.plan()
    scheduler.remove(first)
    scheduler.remove(second)
    assert not scheduler.has_work
    assert scheduler.plan() == StepPlan()


def test_a_waiting_prompt_that_can_run_means_that_the_next_step_reads_one() -> None:
    scheduler = Scheduler(max_num_seqs=1, max_queue=10, chunk=16)
    scheduler.add(sequence(1))
    assert scheduler.is_prefilling
    carry_out(scheduler.plan())
    scheduler.add(sequence(2))
    assert not scheduler.is_prefilling
