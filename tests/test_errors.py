"""Errors that a person can mend are found again, also behind what Ray makes of them."""

from __future__ import annotations

import pytest

from parc_ray.errors import InputError, SimulatorLostError, find_input_error
from parc_ray.faults import lost_worker

SAID = "clip a.pkl: root_pos is wrong; finite numbers are allowed; repair the file"


def fail(*_):
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise InputError(SAID) from error


class Broken:
    """Cannot be made."""

    def __init__(self):
        fail()

    def __call__(self, batch):
        return batch


class Losing:
    """Its simulator is lost at work."""

    def __call__(self, batch):
        raise SimulatorLostError("the server is gone")


class Breaking:
    """Fails at work."""

    def __call__(self, batch):
        fail(batch)


def test_messages_stay_on_one_line():
    assert str(InputError("a:\n  b;\tc")) == "a: b; c"


def test_plain_errors_and_chains():
    with pytest.raises(InputError) as caught:
        fail()
    assert find_input_error(caught.value) is caught.value
    outer = RuntimeError("stage failed")
    outer.__cause__ = caught.value
    assert str(find_input_error(outer)) == SAID
    assert find_input_error(ValueError(f"parc_ray.errors.InputError: {SAID}")) is None
    loop_of_two = ValueError("a")
    loop_of_two.__cause__ = ValueError("b")
    loop_of_two.__cause__.__cause__ = loop_of_two
    assert find_input_error(loop_of_two) is None


def test_a_lost_simulator_is_a_lost_worker_also_behind_others():
    lost = SimulatorLostError("the server (process 7) did not answer")
    assert lost_worker(lost)
    outer = RuntimeError("item mpc-00001")
    outer.__cause__ = lost
    assert lost_worker(outer)
    outer.__cause__ = KeyError("mine")
    assert not lost_worker(outer)


@pytest.mark.slow
def test_what_ray_workers_raise(ray_session):
    import ray
    import ray.data

    def task():
        ray.get(ray.remote(fail).options(num_cpus=0).remote())

    def actor():
        ray.get(ray.remote(Broken).options(num_cpus=0).remote().__call__.remote(1))

    def pool(kind):
        ray.data.range(2).map_batches(kind, concurrency=1, num_cpus=0.5).take_all()

    for work in (task, actor, lambda: pool(Breaking), lambda: pool(Broken)):
        with pytest.raises(Exception) as caught:  # noqa: PT011  (Ray's own kinds)
            work()
        assert type(caught.value) is not InputError
        assert str(find_input_error(caught.value)) == SAID
        assert not lost_worker(caught.value)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        pool(Losing)
    assert lost_worker(caught.value)


def test_a_worker_that_was_really_lost(ray_session):
    import ray

    @ray.remote(num_cpus=0)
    class Dying:
        def go(self):
            import os

            os._exit(1)

    with pytest.raises(ray.exceptions.RayActorError) as caught:
        ray.get(Dying.remote().go.remote())
    assert find_input_error(caught.value) is None
    assert lost_worker(caught.value)
