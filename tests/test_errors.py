"""Errors cross process boundaries: whoever pickles or copies one gets the same error back."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import interlock
from interlock import errors
from interlock.errors import InterlockError, Vote

VOTES = (Vote("redis://a", "granted", 0.001), Vote("redis://b", "timeout", None, "for 2 s"))
KEYWORDS: dict[type[InterlockError], dict[str, Any]] = {
    errors.InterlockError: {},
    errors.NotAcquired: {"name": "x", "owner": "web:1"},
    errors.AcquireTimeout: {"name": "x", "owner": "web:1", "waited": 1.5, "votes": VOTES},
    errors.LeaseLost: {"name": "x", "reason": "expired"},
    errors.StaleFence: {"fence": 3, "newest": None},
    errors.Unavailable: {"backend": "redis://a", "cause": "timeout"},
    errors.NoQuorum: {"backend": "quorum", "cause": "quorum", "votes": VOTES},
    errors.UsageError: {},
    errors.Unsupported: {},
}
WAYS: list[Callable[[InterlockError], InterlockError]] = [
    *(lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol)) for protocol in range(6)),
    copy.copy,
    copy.deepcopy,
]


def test_every_class_is_tried() -> None:
    assert set(KEYWORDS) == {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KEYWORDS)
def test_an_error_comes_back_as_it_was(kind: type[InterlockError], way: Callable[[InterlockError], InterlockError]) -> None:
    error = kind("what happened", **KEYWORDS[kind])
    if isinstance(error, errors.Unavailable):
        error.tell("What to do")
    error.add_note("a note")
    again = way(error)
    assert type(again) is kind
    assert (str(again), again.args) == (str(error), error.args)
    assert vars(again) == vars(error) == {**KEYWORDS[kind], "__notes__": ["a note"]}
    assert isinstance(again, TimeoutError) == (kind is errors.AcquireTimeout)


def test_the_fence_of_the_other_one_need_not_be_known() -> None:
    assert interlock.StaleFence("late", fence=3).newest is None


def wait_in_vain() -> None:
    with interlock.Client("memory://") as client, client.lock("x"):
        client.lock("x", timeout=0).acquire()


def test_an_error_of_a_worker_process_arrives() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(interlock.AcquireTimeout, match="'x' could not be had") as caught:
            pool.submit(wait_in_vain).result(timeout=60)
        assert caught.value.name == "x"
        assert pool.submit(len, "the pool lives").result(timeout=60)
