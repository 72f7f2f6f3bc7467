"""The store in this process's memory, and the executable specification of every other store."""

from .backend import MemoryBackend, open_memory
from .inbox import Inbox
from .state import Held, Memory

__all__ = ["Held", "Inbox", "Memory", "MemoryBackend", "open_memory"]
