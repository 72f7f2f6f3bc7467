------------------------------- MODULE Quorum -------------------------------
(* The quorum lock of interlock for one name: votes, the agreed fence, renewal that heals, clean-up, nodes that forget or come
   back with an older state.

   An attempt is one token: `flow/acquire.py: _poll` draws a fresh one for each question, so nothing is lost by never using
   one twice. Who shares a client with whom does not matter here: an attempt also stands for all that its client knows.
   A node is one server and its scripts, each of which is one step.

   Each action says which function of the shipped code it models; tests/spec/ checks that these exist.
   Each guard that safety rests on is a rule with a name; a configuration may leave rules out (`Without`) and must then fail.
   What time, messages and numbers have become here is told in README.md. *)
EXTENDS Integers, FiniteSets, Sequences, TLC

CONSTANTS
  Nodes, Attempts, Nobody,
  Ttl, MaxTime,       \* how long a lease lasts, and when the world ends; MaxTime = 0: nobody looks at a clock
  Window,             \* answers count for so many moments after they were asked for: every roll says so
  MaxWiden,           \* how often a client may have a window noted that is a moment longer
  Without,            \* rules that are left out
  MaxVanish,          \* how often a node may drop a lease before its time (a clock that jumps, an operator who deletes)
  MaxForget,          \* how often a node may lose all its memory
  MaxStale,           \* how often a node may come back with an earlier state, each saved at any moment
  MaxRestart,         \* how often a node may be restarted and lose nothing, which nobody can know
  MaxRenew,           \* how often leases may be renewed
  MaxAgain,           \* how often somebody who has not got it may ask again with the same token
  MaxGiveUp,          \* how many attempts may give up before they hold anything
  MaxOverdue,         \* how often a connection may be given up whose reply is overdue
  Renewers, Watchers, \* attempts that may renew their leases; attempts whose clients look after nodes that forgot
  Proposals,          \* fences that a client may propose beside those that a node counts
  Never,              \* what nobody does here, so that there is less to look at: "heal", "release"
  Newborn             \* TRUE: nobody has a roll yet

Rules == {
  "majority",   \* a grant needs more than half of the nodes                      core/quorum.py: votes_needed
  "agree",      \* the highest fence is written back until a quorum stores it     core/quorum.py: Tally.behind
  "owner",      \* ... only where the token still holds the lock                  backends/redis/extend.lua
  "sent",       \* a lease is counted from before its request was sent            core/lease.py: deadline
  "leaving",    \* not believed any more from when the release goes out           flow/hold.py: _give_back
  "in time",    \* a renewal that comes after the deadline revives nothing        flow/renewing/requests.py: Requests._judge
  "extends",    \* a renewal needs a quorum of extends, healed nodes do not count core/quorum.py: Extensions._outcome
  "only claim", \* to extend creates nothing                                      backends/redis/extend.lua
  "free",       \* healing takes no lock from anybody                             backends/redis/claim.lua
  "before",     \* healing looks at the record before it asks                     backends/quorum/extension.py: Extending._heal
  "after",      \* ... and when it was answered                                   backends/quorum/extension.py: Extending._heal
  "join",       \* a release waits for the end of a renewal under way             flow/hold.py: _join
  "heal fence", \* healing brings the fence                                       backends/quorum/extension.py: Extending._heal
  "follow",     \* a release goes down the path of the unanswered claim           backends/redis/blocking.py: BlockingTransport.call
  "compare",    \* a release frees its own token only                             backends/redis/release.lua
  "roll",       \* a node that forgot casts no vote                               backends/redis/claim.lua
  "life",       \* a roll is good for one life of the node's memory               backends/redis/standing.lua
  "wait",       \* no vote until what the node forgot has run out                 backends/quorum/readmission.py: Readmission.readmit
  "measured",   \* ... which a quorum of the others was asked for                 backends/quorum/readmission.py: Readmission._measure
  "known first",\* ... after it was known that the node does not vote             backends/quorum/readmission.py: Readmission.readmit
  "settled",    \* ... and when whatever it voted for before has come to them     backends/quorum/readmission.py: Readmission._measure
  "gathered",   \* ... since votes count that came within the window              backends/quorum/markers.py: Markers.in_time
  "prompt",     \* ... and extends as well                                        backends/quorum/extension.py: Extending.extend
  "noted",      \* ... which a quorum has noted                                   backends/quorum/markers.py: Markers.allow
  "as sent",    \* ... before they were asked for                                 backends/quorum/markers.py: Markers.in_time
  "anybody",    \* most lost their memory: what anybody still knows is waited for backends/quorum/readmission.py: Readmission._measure
  "everybody",  \* silent others are not taken for others that forgot as well     backends/quorum/markers.py: Markers.nearly_all
  "mark",       \* a wait counts for one loss of memory, not for a later one      backends/redis/enroll.lua
  "seed",       \* its fences are those of a quorum of the others                 core/quorum.py: reseed
  "seed floor", \* ... even if it has older ones of its own                       backends/redis/claim.lua
  "repeated",   \* ... and for a token that it says holds the lock already        backends/redis/claim.lua
  "kept"        \* no undo is sent for a token whose lease is alive               backends/unanswered.py: Unanswered.kept
}
ASSUME Without \subseteq Rules
Rule(r) == r \notin Without

VARIABLES
  now,
  node,     \* [lock: who holds it, ends: when that expires, count: the fence counter, roll: whether it has a good one,
            \* seed, wide: the longer window is noted in it]
  saved,    \* an earlier state of a node, if there is one that it may come back with
  att,      \* what an attempt knows, see Fresh
  path,     \* requests of an attempt to a node that were not executed yet, in the order of their connection
  stray,    \* the same on a connection that was given up: bytes that may still arrive
  heal,     \* healing of a node: "no", "wanted", "flying", "parked" (nobody waits for the answer any more), "done"
  granted,  \* all fences that were handed out
  bad,      \* what went wrong, once and for all
  used      \* how much of each bound
vars == <<now, node, saved, att, path, stray, heal, granted, bad, used>>

None == 0 - 1
Needed == IF Rule("majority") THEN Cardinality(Nodes) \div 2 + 1 ELSE Cardinality(Nodes) \div 2
Top(S) == CHOOSE x \in S : \A y \in S : x >= y
Length(wide) == IF wide THEN Window + 1 ELSE Window
InTime(me, since) == now <= since + Length(IF Rule("as sent") THEN me.asWide ELSE me.wide)
Over(a) == att[a].phase = "over"
Each(value) == [a \in Attempts |-> [n \in Nodes |-> value]]

Fresh == [
  phase  |-> "idle",                     \* idle, ask, teach, held, leaving, over
  sent   |-> 0,                          \* when it was begun
  answer |-> [n \in Nodes |-> 0],        \* the fence that a node granted it with
  fence  |-> 0,                          \* the agreed one
  stored |-> {},                         \* nodes that are known to store it
  until  |-> 0,                          \* the deadline
  floor  |-> 0,                          \* the highest fence that was handed out before it began
  record |-> FALSE,                      \* in QuorumBackend._where
  asked  |-> None,                       \* when the renewal under way was sent
  won    |-> FALSE,                      \* and that it has a quorum
  ext    |-> [n \in Nodes |-> "no"],     \* "sent", then what the node said: "yes", "gone", "taken"
  seen   |-> [n \in Nodes |-> None],     \* since when it knows that the node does not vote
  till   |-> [n \in Nodes |-> None],     \* until when a lease may last that the node forgot
  wide   |-> FALSE,                      \* its answers count for longer
  asWide |-> FALSE,                      \* ... when it sent what is on its way
  births |-> {}                          \* nodes that its first roll is on its way to
]

Empty == [lock |-> Nobody, ends |-> 0, count |-> 0, roll |-> FALSE, seed |-> 0, wide |-> FALSE]

Init ==
  /\ now = 0
  /\ node = [n \in Nodes |-> [Empty EXCEPT !.roll = ~Newborn]]
  /\ saved = [n \in Nodes |-> {}]
  /\ att = [a \in Attempts |-> Fresh]
  /\ path = Each(<<>>) /\ stray = Each(<<>>) /\ heal = Each("no")
  /\ granted = {0}
  /\ bad = {}
  /\ used = [vanish |-> 0, forget |-> 0, save |-> 0, stale |-> 0, restart |-> 0, renew |-> 0, overdue |-> 0, giveup |-> 0, again |-> 0, widen |-> 0]

----------------------------------------------------------------------------
(* The world *)

\* What a node has at a moment: leases whose time is over are gone.
Kept(state, moment) == IF state.ends > moment THEN state ELSE [state EXCEPT !.lock = Nobody, !.ends = 0]

\* Time goes on, and leases end by the clocks of the nodes.   backends/redis/claim.lua: PX
Tick ==
  /\ now < MaxTime
  /\ now' = now + 1
  /\ node' = [n \in Nodes |-> Kept(node[n], now + 1)]
  /\ saved' = [n \in Nodes |-> {Kept(state, now + 1) : state \in saved[n]}]
  /\ UNCHANGED <<att, path, stray, heal, granted, bad, used>>

\* ... or before its time: no assumption about clocks is left.
Vanish(n) ==
  /\ node[n].lock # Nobody /\ used.vanish < MaxVanish
  /\ node' = [node EXCEPT ![n].lock = Nobody, ![n].ends = 0]
  /\ used' = [used EXCEPT !.vanish = @ + 1]
  /\ UNCHANGED <<now, saved, att, path, stray, heal, granted, bad>>

\* The node's memory is another one from now on. With the rule "mark" what anybody knew of an earlier loss is of no use for this
\* one: Standing.loss is another. What the others were asked before counts only without the rule "known first".
Reborn(n, state) ==
  /\ node' = [node EXCEPT ![n] = state]
  /\ att' = [a \in Attempts |-> [att[a] EXCEPT !.seen[n] = IF Rule("mark") THEN None ELSE @,
                                              !.till[n] = IF Rule("mark") /\ Rule("known first") THEN None ELSE @,
                                              !.births = IF Rule("mark") THEN @ \ {n} ELSE @]]

\* A node restarts empty.
Forget(n) ==
  /\ used.forget < MaxForget /\ (node[n].roll \/ node[n].lock # Nobody)
  /\ Reborn(n, Empty)
  /\ used' = [used EXCEPT !.forget = @ + 1]
  /\ UNCHANGED <<now, saved, path, stray, heal, granted, bad>>

\* A dump is written, a file is flushed, a replica has got as far as this.
Save(n) ==
  /\ used.save < MaxStale /\ saved[n] = {}
  /\ saved' = [saved EXCEPT ![n] = {node[n]}]
  /\ used' = [used EXCEPT !.save = @ + 1]
  /\ UNCHANGED <<now, node, att, path, stray, heal, granted, bad>>

\* It comes back with that: restarted, or failed over to its replica. Its roll names another life (backends/redis/standing.lua).
GoBack(n) ==
  /\ used.stale < MaxStale
  /\ \E state \in saved[n] : Reborn(n, [state EXCEPT !.roll = @ /\ ~Rule("life")])
  /\ saved' = [saved EXCEPT ![n] = {}]
  /\ used' = [used EXCEPT !.stale = @ + 1]
  /\ UNCHANGED <<now, path, stray, heal, granted, bad>>

\* It is restarted and has lost nothing.
Restart(n) ==
  /\ used.restart < MaxRestart /\ node[n].roll
  /\ Reborn(n, [node[n] EXCEPT !.roll = FALSE])
  /\ used' = [used EXCEPT !.restart = @ + 1]
  /\ UNCHANGED <<now, saved, path, stray, heal, granted, bad>>

----------------------------------------------------------------------------
(* What a node does with a request: one script each *)

\* backends/redis/claim.lua, without a line. `healing`: the proposal is the fence of the lease.
Vote(a, n, healing) ==
  LET here == node[n]
      mine == here.lock = a
      may == (here.roll \/ ~Rule("roll")) /\ (here.lock \in {Nobody, a} \/ (healing /\ ~Rule("free")))
      floor == IF Rule("seed floor") \/ here.count = 0 THEN Top({here.count, here.seed}) ELSE here.count
      next == floor + 1
      old == here.count <= here.seed /\ Rule("repeated")
      fences == IF mine /\ here.count > 0 /\ ~old THEN {here.count}  \* a claim repeated by the holder keeps its fence
                ELSE IF healing THEN {IF Rule("heal fence") THEN Top({next, att[a].fence}) ELSE here.count}
                ELSE {next} \cup {p \in Proposals : p > next}
  IN IF ~may THEN UNCHANGED <<node, att>>
     ELSE \E fence \in fences :
       /\ node' = [node EXCEPT ![n] = [@ EXCEPT !.lock = a, !.ends = now + Ttl, !.count = fence]]
       /\ att' = IF att[a].phase = "ask" THEN [att EXCEPT ![a].answer[n] = fence] ELSE att

\* backends/redis/extend.lua, with the agreed fence: the write-back.
Teach(a, n) ==
  IF node[n].lock = a \/ ~Rule("owner")
  THEN /\ node' = [node EXCEPT ![n].count = Top({@, att[a].fence}), ![n].ends = IF node[n].lock = a THEN now + Ttl ELSE @]
       /\ att' = IF att[a].phase = "teach" THEN [att EXCEPT ![a].stored = @ \cup {n}] ELSE att
  ELSE UNCHANGED <<node, att>>

\* backends/redis/release.lua, without a line.
Free(a, n) ==
  IF node[n].lock = a \/ ~Rule("compare")
  THEN /\ node' = [node EXCEPT ![n].lock = Nobody, ![n].ends = 0]
       /\ bad' = IF node[n].lock \in {a, Nobody} THEN bad ELSE bad \cup {"robbed"}
  ELSE UNCHANGED <<node, bad>>

Execute(request, a, n) ==
  CASE request = "vote" -> Vote(a, n, FALSE) /\ UNCHANGED bad
    [] request = "teach" -> Teach(a, n) /\ UNCHANGED bad
    [] request = "release" -> Free(a, n) /\ UNCHANGED att

\* The next request on a connection arrives. One that never does was lost; an answer that is never used was lost.
\* A release follows a healing whose answer nobody waits for any more.   backends/redis/blocking.py: BlockingTransport.call
Arrive(a, n) ==
  /\ path[a][n] # <<>>
  /\ ~(Head(path[a][n]) = "release" /\ heal[a][n] = "parked")
  /\ path' = [path EXCEPT ![a][n] = Tail(@)]
  /\ Execute(Head(path[a][n]), a, n)
  /\ UNCHANGED <<now, saved, stray, heal, granted, used>>

ArriveLate(a, n) ==
  /\ stray[a][n] # <<>>
  /\ stray' = [stray EXCEPT ![a][n] = Tail(@)]
  /\ Execute(Head(stray[a][n]), a, n)
  /\ UNCHANGED <<now, saved, path, heal, granted, used>>

\* A reply is overdue: the connection is closed with an undo as the last thing on it, and what comes next goes elsewhere.
\* backends/unanswered.py: Unanswered.give_up
\* With the rule "kept" a connection that a living lease's claim may still be on is left alone.
Overdue(a, n) ==
  /\ used.overdue < MaxOverdue /\ path[a][n] # <<>> /\ stray[a][n] = <<>>
  /\ att[a].phase \in (IF Rule("kept") THEN {"over"} ELSE {"held", "over"})
  /\ stray' = [stray EXCEPT ![a][n] = path[a][n] \o <<"release">>]
  /\ path' = [path EXCEPT ![a][n] = <<>>]
  /\ used' = [used EXCEPT !.overdue = @ + 1]
  /\ UNCHANGED <<now, node, saved, att, heal, granted, bad>>

----------------------------------------------------------------------------
(* A claim *)

\* flow/ask.py: ask, backends/quorum/vote.py: Voting.claim. All nodes are asked at once.
\* Nothing depends on when the world began, so it may as well have begun with the claim of the one that renews.
Begin(a) ==
  /\ att[a].phase = "idle"
  /\ MaxRenew > 0 /\ a \in Renewers => now = 0
  /\ att' = [att EXCEPT ![a].phase = "ask", ![a].sent = now, ![a].floor = Top(granted), ![a].record = TRUE,
                        ![a].asWide = att[a].wide]
  /\ path' = [path EXCEPT ![a] = [n \in Nodes |-> <<"vote">>]]
  /\ UNCHANGED <<now, node, saved, stray, heal, granted, bad, used>>

\* One that waits asks once more; what it was answered before does not count.   flow/waiting/wait.py: _ask, backends/quorum/tickets.py: Tickets.ask
AskAgain(a) ==
  /\ att[a].phase = "ask" /\ used.again < MaxAgain
  /\ att' = [att EXCEPT ![a].sent = now, ![a].floor = Top(granted), ![a].answer = [n \in Nodes |-> 0],
                        ![a].asWide = att[a].wide]
  /\ path' = [path EXCEPT ![a] = [n \in Nodes |-> Append(@[n], "vote")]]
  /\ used' = [used EXCEPT !.again = @ + 1]
  /\ UNCHANGED <<now, node, saved, stray, heal, granted, bad>>

\* A quorum has granted: those in `heard`, as far as the client knows.   backends/quorum/vote.py: Voting._agree,
\* core/quorum.py: Tally.fence, Tally.behind
Agree(a) ==
  /\ att[a].phase = "ask" /\ (Rule("gathered") => InTime(att[a], att[a].sent))
  /\ \E heard \in SUBSET {n \in Nodes : att[a].answer[n] > 0} :
       LET top == Top({att[a].answer[n] : n \in heard})
           have == {n \in heard : att[a].answer[n] = top}
           behind == IF Rule("agree") /\ Cardinality(have) < Needed THEN heard \ have ELSE {}
       IN /\ Cardinality(heard) >= Needed
          /\ att' = [att EXCEPT ![a].phase = "teach", ![a].fence = top,
                                ![a].stored = IF Rule("agree") THEN have ELSE heard,
                                ![a].answer = [n \in Nodes |-> 0]]
          /\ path' = [path EXCEPT ![a] = [n \in Nodes |-> IF n \in behind THEN Append(@[n], "teach") ELSE @[n]]]
  /\ UNCHANGED <<now, node, saved, stray, heal, granted, bad, used>>

\* flow/ask.py: believe. The grant counts if a quorum stores its fence and its time is not over.
Believe(a) ==
  LET me == att[a] IN
  /\ me.phase = "teach" /\ Cardinality(me.stored) >= Needed
  /\ now < me.sent + Ttl
  /\ att' = [att EXCEPT ![a].phase = "held", ![a].stored = {}, ![a].floor = 0, ![a].sent = 0,
                        ![a].until = IF Rule("sent") THEN me.sent + Ttl ELSE now + Ttl]
  /\ granted' = granted \cup {me.fence}
  /\ bad' = bad \cup (IF me.fence \in granted THEN {"twice"} ELSE {}) \cup (IF me.fence <= me.floor THEN {"backwards"} ELSE {})
  /\ UNCHANGED <<now, node, saved, path, stray, heal, used>>

\* Nothing of the token is at the node or on its way there, so a release would do nothing: it need not be followed further.
Clear(a, n) ==
  Rule("compare") /\ node[n].lock # a /\ path[a][n] = <<>> /\ stray[a][n] = <<>> /\ heal[a][n] = "no"

\* Send the releases: behind what is on its way, or (without the rule "follow") on connections of their own.
Releasing(a) ==
  LET With(queues) == [queues EXCEPT ![a] = [n \in Nodes |-> IF Clear(a, n) THEN @[n] ELSE Append(@[n], "release")]]
  IN IF Rule("follow") THEN path' = With(path) /\ UNCHANGED stray ELSE stray' = With(stray) /\ UNCHANGED path

\* The fence, as long as anything on its way may bring it to a node.
LastFence(a) ==
  IF att[a].asked # None \/ \E n \in Nodes : heal[a][n] # "no" \/ \E i \in 1..Len(path[a][n]) : path[a][n][i] = "teach"
  THEN att[a].fence ELSE 0

\* Lost the vote, too late, cancelled or no answer: take back whatever was granted.
\* backends/quorum/release.py: Releasing.release, backends/quorum/backend.py: QuorumBackend.undo, flow/undo.py: undo
GiveUp(a) ==
  /\ att[a].phase \in {"ask", "teach"} /\ used.giveup < MaxGiveUp
  /\ used' = [used EXCEPT !.giveup = @ + 1]
  /\ Releasing(a)
  /\ att' = [att EXCEPT ![a] = [Fresh EXCEPT !.phase = "over", !.fence = LastFence(a), !.seen = att[a].seen, !.till = att[a].till, !.wide = att[a].wide, !.births = att[a].births]]
  /\ UNCHANGED <<now, node, saved, heal, granted, bad>>

----------------------------------------------------------------------------
(* A lease *)

\* flow/hold.py: release, _give_back, abandon, backends/quorum/backend.py: QuorumBackend.release. Off the record first.
\* Where leases are renewed, the other attempts only try to get in.
Release(a) ==
  /\ att[a].phase = "held" /\ (MaxRenew > 0 => a \in Renewers) /\ "release" \notin Never
  /\ Releasing(a)
  /\ att' = [att EXCEPT ![a].phase = IF Rule("leaving") THEN "over" ELSE "leaving", ![a].record = FALSE,
                        ![a].sent = 0, ![a].fence = LastFence(a), ![a].until = IF Rule("leaving") THEN 0 ELSE @]
  /\ UNCHANGED <<now, node, saved, heal, granted, bad, used>>

\* Only without the rule "leaving": believed until the nodes have answered.
Released(a) ==
  /\ att[a].phase = "leaving" /\ \A n \in Nodes : path[a][n] = <<>>
  /\ att' = [att EXCEPT ![a].phase = "over", ![a].until = 0]
  /\ UNCHANGED <<now, node, saved, path, stray, heal, granted, bad, used>>

\* core/renewal.py: plan, flow/renewing/requests.py: Requests, flow/extend.py: extend, backends/quorum/extension.py: Extending.extend
Renew(a) ==
  /\ a \in Renewers /\ att[a].phase = "held" /\ att[a].asked = None /\ used.renew < MaxRenew
  /\ Rule("in time") => now < att[a].until
  /\ att' = [att EXCEPT ![a].asked = now, ![a].asWide = att[a].wide, ![a].ext = [n \in Nodes |-> "sent"]]
  /\ used' = [used EXCEPT !.renew = @ + 1]
  /\ UNCHANGED <<now, node, saved, path, stray, heal, granted, bad>>

\* backends/redis/extend.lua. Not on the path of the token: backends/redis/backend.py: RedisBackend.renew
Extend(a, n) ==
  LET here == node[n]
      mine == here.lock = a \/ (here.lock = Nobody /\ ~Rule("only claim"))
  IN /\ att[a].ext[n] = "sent"
     /\ att' = [att EXCEPT ![a].ext[n] = IF mine THEN "yes" ELSE IF here.lock = Nobody THEN "gone" ELSE "taken"]
     /\ node' = IF mine THEN [node EXCEPT ![n] = [@ EXCEPT !.lock = a, !.ends = now + Ttl, !.count = Top({@, att[a].fence})]]
                ELSE node
     /\ UNCHANGED <<now, saved, path, stray, heal, granted, bad, used>>

\* A quorum has extended it: heal the nodes that lack it, as far as they were heard.
\* backends/quorum/extension.py: Extending._mend, core/quorum.py: Extensions.lacking
Mend(a) ==
  LET me == att[a] IN
  /\ me.asked # None /\ ~me.won /\ (Rule("prompt") => InTime(me, me.asked))
  /\ Cardinality({n \in Nodes : me.ext[n] = "yes"}) >= (IF Rule("extends") THEN Needed ELSE 1)
  /\ \E lacking \in SUBSET {n \in Nodes : "heal" \notin Never /\ heal[a][n] = "no" /\ me.ext[n] \in {"gone"} \cup (IF Rule("free") THEN {} ELSE {"taken"})} :
       heal' = [heal EXCEPT ![a] = [n \in Nodes |-> IF n \in lacking THEN "wanted" ELSE @[n]]]
  /\ att' = [att EXCEPT ![a].won = TRUE, ![a].ext = [n \in Nodes |-> "no"]]
  /\ UNCHANGED <<now, node, saved, path, stray, granted, bad, used>>

\* The answer reaches the holder; or there is none.   flow/renewing/requests.py: Requests._judge, core/lease.py: Hold.renewed, Hold.lost
Judge(a) ==
  LET me == att[a]
      believed == me.won /\ me.phase = "held" /\ (now < me.until \/ ~Rule("in time"))
  IN /\ me.asked # None
     /\ att' = [att EXCEPT ![a].asked = None, ![a].won = FALSE, ![a].ext = [n \in Nodes |-> "no"],
                           ![a].until = IF ~believed THEN @ ELSE IF Rule("sent") THEN me.asked + Ttl ELSE now + Ttl]
     /\ bad' = IF believed /\ now >= me.until THEN bad \cup {"revived"} ELSE bad
     /\ UNCHANGED <<now, node, saved, path, stray, heal, granted, used>>

----------------------------------------------------------------------------
(* Healing of one node: backends/quorum/extension.py: Extending._heal *)

HealAsk(a, n) ==
  /\ heal[a][n] = "wanted"
  /\ heal' = [heal EXCEPT ![a][n] = IF att[a].record \/ ~Rule("before") THEN "flying" ELSE "no"]
  /\ UNCHANGED <<now, node, saved, att, path, stray, granted, bad, used>>

\* It follows a claim that is still on its way there, and may be overtaken by a release: that has another connection.
HealArrive(a, n) ==
  /\ heal[a][n] \in {"flying", "parked"}
  /\ IF path[a][n] = <<>> THEN TRUE ELSE Head(path[a][n]) # "vote"
  /\ Vote(a, n, TRUE)
  /\ bad' = IF Rule("free") \/ node[n].lock \in {a, Nobody} THEN bad ELSE bad \cup {"robbed"}
  /\ heal' = [heal EXCEPT ![a][n] = IF @ = "flying" THEN "done" ELSE "no"]
  /\ UNCHANGED <<now, saved, path, stray, granted, used>>

HealAnswered(a, n) ==
  /\ heal[a][n] = "done"
  /\ heal' = [heal EXCEPT ![a][n] = "no"]
  /\ path' = IF att[a].record \/ ~Rule("after") THEN path ELSE [path EXCEPT ![a][n] = Append(@, "release")]
  /\ UNCHANGED <<now, node, saved, att, stray, granted, bad, used>>

\* The answer does not come. A release waits until this is known (flow/hold.py: _join), so it is known while the lease is held.
HealLate(a, n) ==
  /\ heal[a][n] \in {"flying", "done"}
  /\ Rule("join") => att[a].phase = "held"
  /\ heal' = [heal EXCEPT ![a][n] = IF @ = "flying" THEN "parked" ELSE "no"]
  /\ UNCHANGED <<now, node, saved, att, path, stray, granted, bad, used>>

----------------------------------------------------------------------------
(* Who may vote *)

\* An answer without a vote, or no good roll: it is known that the node does not vote.   backends/quorum/markers.py: Markers.quarantine
Suspect(a, n) ==
  /\ a \in Watchers /\ ~node[n].roll /\ att[a].seen[n] = None
  /\ att' = [att EXCEPT ![a].seen[n] = now]
  /\ UNCHANGED <<now, node, saved, path, stray, heal, granted, bad, used>>

Others(n) == {m \in Nodes \ {n} : node[m].roll}

\* How long to wait: until the end of the last lease that a quorum of the others hold. Too few others have a good roll: everybody
\* has to answer, and what anybody still knows is waited for, this client's own lease too.
\* backends/quorum/readmission.py: Readmission._measure, backends/quorum/markers.py: Markers.nearly_all
\* Without the rule "everybody" the others need only be silent.
Measure(a, n) ==
  LET me == att[a]
      own == IF me.phase = "held" THEN me.until ELSE 0
      Ends(nodes) == {node[m].ends : m \in nodes}
      Settled(nodes) == Rule("settled") /\ me.seen[n] # None => now > me.seen[n] + Length(me.wide \/ \E m \in nodes : node[m].wide)
  IN
  /\ a \in Watchers /\ me.till[n] = None
  /\ IF Rule("known first") THEN me.seen[n] # None /\ ~node[n].roll ELSE TRUE
  /\ \/ \E rolls \in SUBSET Others(n) :
          /\ Cardinality(rolls) >= (IF Rule("measured") THEN Needed ELSE 1) /\ Settled(rolls)
          /\ att' = [att EXCEPT ![a].till[n] = Top({now} \cup Ends(rolls))]
     \/ /\ Rule("everybody") => Cardinality(Others(n)) < Needed
        /\ Settled(Nodes)
        /\ LET heard == IF Rule("everybody") /\ Rule("anybody") THEN {own} \cup Ends(Nodes)
                        ELSE IF Rule("everybody") THEN Ends(Others(n)) ELSE {own}
           IN att' = [att EXCEPT ![a].till[n] = Top({now} \cup heard)]
  /\ UNCHANGED <<now, node, saved, path, stray, heal, granted, bad, used>>

\* A client that will wait longer for its answers has a quorum note that first.   backends/quorum/markers.py: Markers.allow
Widen(a) ==
  /\ used.widen < MaxWiden /\ ~att[a].wide
  /\ \E rolls \in SUBSET {n \in Nodes : node[n].roll} :
       /\ IF Rule("noted") THEN Cardinality(rolls) >= Needed ELSE rolls = {}
       /\ node' = [n \in Nodes |-> IF n \in rolls THEN [node[n] EXCEPT !.wide = TRUE] ELSE node[n]]
  /\ att' = [att EXCEPT ![a].wide = TRUE]
  /\ used' = [used EXCEPT !.widen = @ + 1]
  /\ UNCHANGED <<now, saved, path, stray, heal, granted, bad>>

\* The wait is over: the node gets a roll, with the highest fence of a quorum of the others; or the highest that is known at all.
\* backends/quorum/readmission.py: Readmission.readmit, Readmission._readmit_one, core/quorum.py: reseed, backends/redis/enroll.lua
Readmit(a, n) ==
  LET me == att[a]
      waited == (me.till[n] # None /\ now >= me.till[n]) \/ ~Rule("wait")
      Known(nodes) == {Top({node[m].count, node[m].seed}) : m \in nodes}
      Enrolled(nodes, known) == [node EXCEPT ![n].roll = TRUE, ![n].seed = IF Rule("seed") THEN Top(known \cup Known(nodes)) ELSE 0,
                                             ![n].wide = @ \/ \E m \in nodes : node[m].wide]
  IN
  /\ me.seen[n] # None
  /\ att' = [att EXCEPT ![a].seen[n] = None, ![a].till[n] = None]
  /\ IF node[n].roll THEN UNCHANGED node  \* somebody else has done it
     ELSE /\ waited
          /\ \/ \E rolls \in SUBSET Others(n) : Cardinality(rolls) >= Needed /\ node' = Enrolled(rolls, {})
             \/ Rule("everybody") /\ Cardinality(Others(n)) < Needed /\ node' = Enrolled(Nodes, {me.fence})
             \/ ~Rule("everybody") /\ node' = Enrolled({}, {me.fence})
  /\ UNCHANGED <<now, saved, path, stray, heal, granted, bad, used>>

\* Nobody has a roll: the cluster is new, and its first rolls are on their way.   backends/quorum/opening.py: Opening._born
FindNew(a) ==
  /\ Newborn /\ att[a].phase = "idle" /\ att[a].births = {}
  /\ \A n \in Nodes : ~node[n].roll
  /\ used.forget + used.stale = 0
  /\ att' = [att EXCEPT ![a].births = Nodes]
  /\ UNCHANGED <<now, node, saved, path, stray, heal, granted, bad, used>>

\* backends/redis/enroll.lua
Enroll(a, n) ==
  /\ n \in att[a].births
  /\ att' = [att EXCEPT ![a].births = @ \ {n}]
  /\ node' = [node EXCEPT ![n].roll = TRUE]
  /\ UNCHANGED <<now, saved, path, stray, heal, granted, bad, used>>

----------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E n \in Nodes : Vanish(n) \/ Forget(n) \/ Save(n) \/ GoBack(n) \/ Restart(n)
  \/ \E a \in Attempts :
       \/ Begin(a) \/ AskAgain(a) \/ Agree(a) \/ Believe(a) \/ GiveUp(a) \/ Release(a) \/ Released(a)
       \/ Renew(a) \/ Mend(a) \/ Judge(a) \/ FindNew(a) \/ Widen(a)
       \/ \E n \in Nodes :
            \/ Arrive(a, n) \/ ArriveLate(a, n) \/ Overdue(a, n) \/ Extend(a, n)
            \/ HealAsk(a, n) \/ HealArrive(a, n) \/ HealAnswered(a, n) \/ HealLate(a, n)
            \/ Suspect(a, n) \/ Measure(a, n) \/ Readmit(a, n) \/ Enroll(a, n)

Spec == Init /\ [][Next]_vars
NodesAlike == Permutations(Nodes)
AllAlike == {p @@ q : p \in Permutations(Nodes), q \in Permutations(Attempts)}

\* For counter-examples that are long, where not everything else need be looked at: nobody asks for the lock before the first
\* moment is over; those who do not renew ask only in the last; things go wrong one by one.
QuietStart == now = 0 => \A a \in Attempts : att[a].phase = "idle"
OneByOne ==
  /\ now > 0 \/ used.again > 0 => used.stale = 1
  /\ used.vanish > 0 => used.save = 1
  /\ used.vanish = 0 => \A a \in Attempts \ Renewers : att[a].phase = "idle"
  /\ used.again = 0 => \A a \in Renewers : att[a].phase \in {"idle", "ask"}
  /\ now > 0 => \A a \in Attempts \ Renewers : Over(a)
LateRival == now < MaxTime => \A a \in Attempts \ Renewers : att[a].phase = "idle"

----------------------------------------------------------------------------
(* What must hold *)

\* No two believe in their leases at once. Needs clocks that run alike: MaxVanish = 0.
Exclusion ==
  \A a, b \in Attempts : a # b =>
    ~(/\ att[a].phase \in {"held", "leaving"} /\ now < att[a].until
      /\ att[b].phase \in {"held", "leaving"} /\ now < att[b].until)

\* No fence is handed out twice, and a grant that was asked for after another was made has a higher one. Needs no clock.
FencesUnique == "twice" \notin bad
FencesOrdered == "backwards" \notin bad

\* A lease whose deadline has passed is never believed in again.
NoRevival == "revived" \notin bad

\* Neither a release nor an undo nor a healing takes anything from anybody else.
OwnOnly == "robbed" \notin bad

\* Once everything that was sent for a token that is done with has arrived, no node holds it.
NothingLeft ==
  \A a \in Attempts :
    Over(a) /\ (\A n \in Nodes : path[a][n] = <<>> /\ stray[a][n] = <<>> /\ heal[a][n] = "no") => \A n \in Nodes : node[n].lock # a
=============================================================================
