"""`interlock run NAME -- CMD…`: hold a lock while a command runs, and never let the command outlive the lock.

Two processes share the work, because a supervisor that can be killed cannot promise anything alone:

    runner   what the user started. Waits for the lock, has it renewed, forwards signals, speaks, gives the exit code
    warden   forked by the runner before any client or thread exists; the parent of the command. Knows the lease's deadline
             and ends everything below it in time, on its own clock, whether or not the runner still lives

    runner ─┬─ warden ── command ── whatever it starts
            └─ (the threads of the client)

What may befall them, and who acts:

- the lease is not renewed in time             warden: SIGTERM at deadline − grace, SIGKILL just before the deadline
- the runner is killed, stopped, hangs         warden: end of file, or the same deadline
- the warden is killed                         the kernel kills the command (PR_SET_PDEATHSIG); what else was below the warden
                                               falls to the runner (PR_SET_CHILD_SUBREAPER), which kills it, then releases
- the warden is stopped, and the lease lost    runner: kills what is below it
- a descendant left the group or the session   found by its parents in /proc; orphans fall to the warden

Files: `arguments` (the parser), `options` (what was asked for), `command` (which program), `verb` (the order of events),
`runner` (before and after), `watch` (meanwhile), `warden`, `channel` (what they say to each other), `tree` (ending processes),
`terminal`, `signals`.
"""
