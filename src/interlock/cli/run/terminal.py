"""The terminal that a job was started from, if any: whose keys are whose.

Ctrl-C, Ctrl-\\ and Ctrl-Z go to the group in the terminal's foreground, and only that group may read the keyboard. The
command has a group of its own, so:

- if we have the terminal to ourselves (stdin and stdout are one), the command gets the foreground when it starts;
- in a pipeline the others need it too (`interlock run … | less`), so the command gets it only when it asks for it: the kernel
  stops it with SIGTTIN or SIGTTOU, and then it is given the foreground and continued;
- in the background nothing is touched; after the shell's `fg` (SIGCONT) it is as above.

When the command has ended the foreground goes back to where it was.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Terminal:
    """The controlling terminal of this process, seen from the group that the shell knows."""

    def __init__(self) -> None:
        self._home = os.getpgrp()
        self._fd = -1
        with suppress(OSError):  # no terminal: cron, a service, a container
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)  # for its controls only
        self._alone = self._fd >= 0 and os.isatty(0) and os.isatty(1)

    def give(self, group: int, wanted: bool = False) -> bool:
        """Put `group` into the foreground, if we are there and it is `wanted` or ours alone. Whether that was done."""
        return (wanted or self._alone) and self._move(self._home, group)

    def take_back(self, group: int) -> bool:
        """Put ourselves into the foreground again, if `group` is there. Whether it was."""
        return self._move(group, self._home)

    def _move(self, source: int, target: int) -> bool:
        if self._fd < 0:
            return False
        # A process outside of the foreground that moves it is stopped by SIGTTOU, unless it blocks that.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            if os.tcgetpgrp(self._fd) != source:
                return False
            os.tcsetpgrp(self._fd, target)
            return True
        except OSError:  # hung up, or the group is gone
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
