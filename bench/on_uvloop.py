"""interlock's asyncio colour on uvloop's event loop, where that is installed. Nothing else differs."""

from __future__ import annotations

import asyncio

from . import ours


class OnUvloop:
    """See `child`: what the loop is made by."""

    @staticmethod
    def loop_factory() -> asyncio.AbstractEventLoop:
        import uvloop

        return uvloop.new_event_loop()


class Asyncio(OnUvloop, ours.Asyncio):
    """One lock after the other."""


class Tasks(OnUvloop, ours.Tasks):
    """Many tasks."""
