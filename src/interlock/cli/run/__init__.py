"""`interlock run NAME -- CMD…`: hold a lock while a command runs, and never let the command outlive the lock.

Two processes share the work, because one that can be killed cannot promise anything alone:

    runner      what the user started. Waits for the lock, has it renewed, forwards signals, speaks, gives the exit code
    supervisor  forked by the runner before any client or thread exists; the parent of the command. Knows the lease's
                deadline and ends everything below it in time, on its own clock, whether or not the runner still lives

    runner ─┬─ supervisor ── command ── whatever it starts
            └─ (the threads of the client)

What may befall them, and who acts:

- the lease is not renewed in time             supervisor: SIGTERM at deadline − grace, SIGKILL just before the deadline
- the runner is killed, stopped, hangs         supervisor: end of file, or the same deadline
- one is stopped, and the other killed         the kernel continues the stopped one (`channel.continue_when_gone`), which acts
- stderr is not read                           neither waits for that (`voice`)
- the supervisor is killed                     the kernel kills the command (PR_SET_PDEATHSIG); what else was below it falls to
                                               the runner (PR_SET_CHILD_SUBREAPER), which kills it, then releases
- the supervisor is stopped, the lease lost    runner: kills what is below it
- a descendant left the group or the session   found by its parents in /proc; orphans fall to the supervisor

Act first, speak afterwards, never wait: between the moment at which the lock may be lost and the moment at which nothing of the
command is left, neither of the two waits for anything but that.

Files: `options` (what was asked for), `command` (which program, and why it cannot be started), `verb` (the order of events),
`runner` (before and after), `watch` (meanwhile), `link` (the runner's connection to its supervisor), `supervisor`, `start` (how
the command is started), `channel` (what the two say to each other), `tree` (ending processes), `voice` (what they say to
people), `terminal`, `signals`.
"""
