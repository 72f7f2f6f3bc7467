"""The settings of a lock: written once, explained in every help, and an unknown one is refused at once."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import interlock
from interlock import AsyncClient, Client, UsageError
from interlock.api.options import Settings, described

TAKES_SETTINGS: list[Any] = [Client.lock, AsyncClient.lock, Client.locked, AsyncClient.locked, interlock.lock]


@pytest.mark.parametrize("function", TAKES_SETTINGS)
def test_every_help_explains_every_setting(function: Any) -> None:
    told = inspect.getdoc(function) or ""
    for setting in Settings.__annotations__:
        assert re.search(rf"^{setting} +\S.{{15}}", told, re.MULTILINE), setting
    assert not told.startswith("The settings"), "its own words come first"
    assert "Unpack[Settings]" in str(inspect.signature(function)), "which type checkers and editors take apart"


def test_a_help_is_put_together_whatever_its_indentation() -> None:
    def function() -> None:
        """One.

        Two.
        """

    one, two, *rest = (inspect.getdoc(described(function)) or "").split("\n\n")
    assert (one, two) == ("One.", "Two.")
    assert rest[0].startswith("The settings of a lock")
    assert rest[1].startswith("ttl  ")


@pytest.mark.parametrize("face", [Client, AsyncClient])
@pytest.mark.parametrize("verb", ["lock", "locked"])
def test_a_setting_that_does_not_exist_is_a_type_error_at_once(face: Any, verb: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tll'; the settings of a lock are ttl, timeout, renew, "):
        getattr(face("memory://"), verb)("x", tll=5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tll'"):
        interlock.lock("x", tll=5)  # type: ignore[call-arg]


def test_settings_are_given_by_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        Client("memory://").lock("x", 10)  # type: ignore[misc]


def test_a_lock_without_settings_shares_those_of_its_client() -> None:
    client = Client("memory://", ttl=3, timeout=1, renew=False)
    assert client.lock("x")._options is client._options
    changed = client.lock("x", note="me", timeout=None)._options
    assert (changed.ttl, changed.timeout, changed.policy.renew, changed.note) == (3, None, False, "me")
    assert client.lock("x", renew=True, max_hold=9)._options.policy.max_hold == 9
    with pytest.raises(UsageError, match="renew=False has none"):
        client.lock("x", max_hold=9)
