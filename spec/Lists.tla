-------------------------------- MODULE Lists --------------------------------
(* How the list of nodes of a quorum is changed without two holders: one name, clients with the old list and with the new one.

   A node votes for clients whose list is the one in its roll. A change closes a quorum of the old list and all nodes that are
   new, waits until the closed nodes of the old list hold nothing, and only then opens the nodes under the new list. Each of its
   steps is a compare-and-set of one node's roll (backends/redis/enroll.lua); whoever makes them may stop anywhere, so nothing
   is said about that here. Votes, leases, time and rules are as in Quorum.tla; fences are not modelled, and nobody forgets. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  OldNodes, NewNodes,         \* the two lists; they may share nodes
  OldClients, NewClients,     \* attempts, by the list that their clients were given
  Nobody,
  Ttl, MaxTime, MaxRenew,
  Without

Rules == {
  "list",    \* a node votes only for clients with the list of its roll             backends/redis/claim.lua
  "closed",  \* no node votes under the new list before a quorum of the old one is closed   core/quorum.py: Marker
  "empty"    \* ... and holds no lease of it any more                               backends/port.py: NodeStatus
}
ASSUME Without \subseteq Rules
Rule(r) == r \notin Without

VARIABLES
  now,
  node,   \* [lock: who holds it, ends: when that expires, list: of its roll, open: whether it votes under it]
  att,    \* [phase, sent, votes, until, asked, ext]
  path,   \* nodes that an attempt's vote is on its way to
  used
vars == <<now, node, att, path, used>>

None == 0 - 1
Nodes == OldNodes \cup NewNodes
Attempts == OldClients \cup NewClients
ListOf(a) == IF a \in OldClients THEN "old" ELSE "new"
NodesOf(a) == IF a \in OldClients THEN OldNodes ELSE NewNodes
Quorum(all, some) == 2 * Cardinality(all \cap some) > Cardinality(all)  \* core/quorum.py: votes_needed

Init ==
  /\ now = 0
  /\ node = [n \in Nodes |-> [lock |-> Nobody, ends |-> 0, list |-> IF n \in OldNodes THEN "old" ELSE "none", open |-> n \in OldNodes]]
  /\ att = [a \in Attempts |-> [phase |-> "idle", sent |-> 0, votes |-> {}, until |-> 0, asked |-> None, ext |-> {}]]
  /\ path = [a \in Attempts |-> {}]
  /\ used = 0

Tick ==
  /\ now < MaxTime
  /\ now' = now + 1
  /\ node' = [n \in Nodes |-> IF node[n].ends > now + 1 THEN node[n] ELSE [node[n] EXCEPT !.lock = Nobody, !.ends = 0]]
  /\ UNCHANGED <<att, path, used>>

----------------------------------------------------------------------------
(* A lease *)

\* backends/quorum/vote.py: Voting.claim
Begin(a) ==
  /\ att[a].phase = "idle"
  /\ att' = [att EXCEPT ![a].phase = "ask", ![a].sent = now]
  /\ path' = [path EXCEPT ![a] = NodesOf(a)]
  /\ UNCHANGED <<now, node, used>>

\* backends/redis/claim.lua
Vote(a, n) ==
  LET may == node[n].lock \in {Nobody, a} /\ ((node[n].open /\ node[n].list = ListOf(a)) \/ ~Rule("list")) IN
  /\ n \in path[a]
  /\ path' = [path EXCEPT ![a] = @ \ {n}]
  /\ node' = IF may THEN [node EXCEPT ![n].lock = a, ![n].ends = now + Ttl] ELSE node
  /\ att' = IF may /\ att[a].phase = "ask" THEN [att EXCEPT ![a].votes = @ \cup {n}] ELSE att
  /\ UNCHANGED <<now, used>>

\* flow/ask.py: believe
Believe(a) ==
  /\ att[a].phase = "ask" /\ Quorum(NodesOf(a), att[a].votes) /\ now < att[a].sent + Ttl
  /\ att' = [att EXCEPT ![a].phase = "held", ![a].until = att[a].sent + Ttl, ![a].votes = {}, ![a].sent = 0]
  /\ UNCHANGED <<now, node, path, used>>

\* backends/quorum/extension.py: Extending.extend
Renew(a) ==
  /\ att[a].phase = "held" /\ now < att[a].until /\ att[a].asked = None /\ used < MaxRenew
  /\ att' = [att EXCEPT ![a].asked = now]
  /\ used' = used + 1
  /\ UNCHANGED <<now, node, path>>

\* backends/redis/extend.lua: whoever holds it may extend it, whatever the roll says.
Extend(a, n) ==
  /\ att[a].asked # None /\ n \in NodesOf(a) \ att[a].ext /\ node[n].lock = a
  /\ att' = [att EXCEPT ![a].ext = @ \cup {n}]
  /\ node' = [node EXCEPT ![n].ends = now + Ttl]
  /\ UNCHANGED <<now, path, used>>

\* flow/renewing/requests.py: Requests._judge
Judge(a) ==
  /\ att[a].asked # None /\ now < att[a].until /\ Quorum(NodesOf(a), att[a].ext)
  /\ att' = [att EXCEPT ![a].until = att[a].asked + Ttl, ![a].asked = None, ![a].ext = {}]
  /\ UNCHANGED <<now, node, path, used>>

\* backends/redis/release.lua. What is on its way is left to expire, here.
Free(a, n) ==
  /\ att[a].phase = "over" /\ node[n].lock = a
  /\ node' = [node EXCEPT ![n].lock = Nobody, ![n].ends = 0]
  /\ UNCHANGED <<now, att, path, used>>

\* flow/hold.py: release
Release(a) ==
  /\ att[a].phase = "held"
  /\ att' = [att EXCEPT ![a] = [@ EXCEPT !.phase = "over", !.until = 0, !.asked = None, !.ext = {}]]
  /\ UNCHANGED <<now, node, path, used>>

----------------------------------------------------------------------------
(* The change: backends/redis/enroll.lua, one node at a time *)

\* No vote under the old list any more. A node that is in the new list only is closed under that.
Close(n) ==
  /\ IF n \in OldNodes THEN node[n].list = "old" /\ node[n].open ELSE node[n].list = "none"
  /\ node' = [node EXCEPT ![n].open = FALSE, ![n].list = IF n \in OldNodes THEN "old" ELSE "new"]
  /\ UNCHANGED <<now, att, path, used>>

\* It was seen closed and empty, and leaves the old list.
Leave(n) ==
  /\ n \in OldNodes /\ node[n].list = "old" /\ ~node[n].open
  /\ Rule("empty") => node[n].lock = Nobody
  /\ node' = [node EXCEPT ![n].list = "new"]
  /\ UNCHANGED <<now, att, path, used>>

\* A quorum of the old list has left it. The others need not have: they are a minority of it.
Open(n) ==
  /\ n \in NewNodes /\ ~(node[n].list = "new" /\ node[n].open) /\ node[n].list # "none"
  /\ Rule("closed") => Quorum(OldNodes, {m \in OldNodes : node[m].list = "new"})
  /\ node' = [node EXCEPT ![n].list = "new", ![n].open = TRUE]
  /\ UNCHANGED <<now, att, path, used>>

----------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E n \in Nodes : Close(n) \/ Leave(n) \/ Open(n)
  \/ \E a \in Attempts :
       \/ Begin(a) \/ Believe(a) \/ Renew(a) \/ Judge(a) \/ Release(a)
       \/ \E n \in Nodes : Vote(a, n) \/ Extend(a, n) \/ Free(a, n)

Spec == Init /\ [][Next]_vars
\* Nodes of one kind are alike: in both lists, in the old one only, in the new one only.
NodesAlike == {p @@ q @@ r : p \in Permutations(OldNodes \cap NewNodes), q \in Permutations(OldNodes \ NewNodes), r \in Permutations(NewNodes \ OldNodes)}

Exclusion ==
  \A a, b \in Attempts : a # b => ~(att[a].phase = "held" /\ now < att[a].until /\ att[b].phase = "held" /\ now < att[b].until)
=============================================================================
