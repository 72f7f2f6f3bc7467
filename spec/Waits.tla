-------------------------------- MODULE Waits --------------------------------
(* How nodes that may not vote come back though no client lives for long: what a client knows of a wait is noted on the nodes.

   A node that lost its memory casts no vote until what it forgot is over. A client learns of the loss (Suspect). When a window has
   passed since then, it asks the others how long that lasts (Measure). When that is over, it gives the node a roll (Readmit). All of
   this is in Quorum.tla, for clients that live to the end of it. Here a client has the nodes note for how long it knows of the loss
   and, later, how long is left. A client that comes after it believes what a quorum of nodes says (Learn, LearnEnd).

   Durations are sent, never moments. So time is what has passed and what is left: Tick makes each age longer and each rest shorter,
   as far as that matters, and a clock that jumps does it on one node alone. Nothing bounds how many moments there are.
   Votes and leases are not modelled: a loss says how long that lasts which was forgotten, and only who measures is told. *)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Nodes, Clients, Nobody,
  Mortal,                \* clients that live for less than a moment: with each Tick another one begins in their place
  Window, Ttl,
  Losses,                \* names of losses, 1..n: so often is memory lost
  Heeded,                \* those that clients do something about; the others only make a node forget its notes
  MaxStale, MaxJump,     \* how often a node comes back with older notes; how often a clock jumps
  Without

Rules == {
  "notes",        \* nodes note what clients know of a wait                         backends/redis/roll.lua
  "named",        \* a note counts for the loss that it names, and no other         backends/redis/roll.lua
  "mark",         \* a node takes its roll only from who names its loss             backends/redis/enroll.lua
  "known",        \* a wait counts from when this loss was known                    backends/quorum/markers.py: Markers.quarantine
  "window",       \* the others are asked when a window has passed since then       backends/quorum/readmission.py: Readmission._measure
  "age vouched",  \* for how long it is known: as a quorum of nodes says            core/waits.py: vouched_age
  "end vouched",  \* ... and how long is left                                       core/waits.py: vouched_end
  "lacking",      \* a node without a note says nothing, not "nothing is left"      core/waits.py: vouched_end
  "answered"      \* what a node says counts from its answer, not from the question    backends/quorum/readmission.py: Readmission._admission
}
ASSUME Without \subseteq Rules
Rule(r) == r \notin Without

VARIABLES
  node,    \* [votes, loss: its last one, notes]
  loss,    \* [of: which node, due: how long until all that counts on it has come to the others, left: of what was forgotten]
  client,  \* its notes
  saved,   \* notes of a node as they were once
  used     \* how often things went wrong
vars == <<node, loss, client, saved, used>>

None == 0 - 1
Needed == (Cardinality(Nodes) \div 2) + 1  \* core/quorum.py: votes_needed
Top(s) == CHOOSE x \in s : \A y \in s : y <= x
Least(s) == CHOOSE x \in s : \A y \in s : x <= y

\* Notes, for each loss: age, for how long it is known (more than a window makes no difference); left, how long is left.
Unknown == [age |-> None, left |-> None]
Blank == [l \in Losses |-> Unknown]
Older(age, by) == IF age = None THEN None ELSE Least({age + by, Window})
Shorter(left, by) == IF left = None THEN None ELSE Top({left - by, 0})
Later(notes, by) == [l \in Losses |-> [age |-> Older(notes[l].age, by), left |-> Shorter(notes[l].left, by)]]

Init ==
  /\ node = [n \in Nodes |-> [votes |-> TRUE, loss |-> 0, notes |-> Blank]]
  /\ loss = [l \in Losses |-> [of |-> Nobody, due |-> 0, left |-> 0]]
  /\ client = [c \in Clients |-> Blank]
  /\ saved = [n \in Nodes |-> Blank]
  /\ used = [save |-> 0, stale |-> 0, jump |-> 0]

\* A moment passes. A client that begins knows nothing.
Tick ==
  /\ node' = [n \in Nodes |-> [node[n] EXCEPT !.notes = Later(@, 1)]]
  /\ loss' = [l \in Losses |-> [loss[l] EXCEPT !.due = Shorter(@, 1), !.left = Shorter(@, 1)]]
  /\ client' = [c \in Clients |-> IF c \in Mortal THEN Blank ELSE Later(client[c], 1)]
  /\ saved' = [n \in Nodes |-> Later(saved[n], 1)]
  /\ UNCHANGED used

----------------------------------------------------------------------------
(* What goes wrong *)

\* With the rules "named" and "mark", what is known of a loss that is past makes no difference, and is left away.
Present(notes, n) ==
  [l \in Losses |-> IF loss[l].of = n /\ {"named", "mark"} \cap Without = {} THEN Unknown ELSE notes[l]]
Change(n, new) ==
  /\ node' = [m \in Nodes |-> LET then == IF m = n THEN new ELSE node[m] IN [then EXCEPT !.notes = Present(@, n)]]
  /\ client' = [c \in Clients |-> Present(client[c], n)]
  /\ saved' = [m \in Nodes |-> Present(saved[m], n)]

\* What counts on a forgotten vote comes to the other nodes within a window, and lasts for a ttl from there at most.
\* The loss has a name that no other has: a mark, made by who looks first, and the history.   backends/redis/roll.lua
\* A node that is full makes no mark, and its loss no name: of that nothing may be noted or believed, and it is left out here.
Lost(n, notes) ==
  \E l \in Losses, left \in 0..(Window + Ttl) :
    /\ loss[l].of = Nobody /\ \A k \in Losses : k < l => loss[k].of # Nobody
    /\ loss' = [loss EXCEPT ![l] = [of |-> n, due |-> Window, left |-> left]]
    /\ Change(n, [votes |-> FALSE, loss |-> l, notes |-> notes])

\* A node comes back empty. What it had noted is gone too.
Lose(n) == Lost(n, Blank) /\ UNCHANGED used

\* A node comes back with an older state: what it had noted then has gone on since.
GoBack(n) ==
  /\ used.stale < used.save
  /\ Lost(n, saved[n])
  /\ used' = [used EXCEPT !.stale = @ + 1]

Save(n) ==
  /\ used.save < MaxStale
  /\ saved' = [saved EXCEPT ![n] = node[n].notes]
  /\ used' = [used EXCEPT !.save = @ + 1]
  /\ UNCHANGED <<node, loss, client>>

\* The clock of a node jumps forward: what it noted before looks older, or over.
Jump(n) ==
  /\ used.jump < MaxJump
  /\ \E by \in 1..(Window + Ttl) :
       /\ node' = [node EXCEPT ![n].notes = Later(@, by)]
       /\ saved' = [saved EXCEPT ![n] = Later(@, by)]
  /\ used' = [used EXCEPT !.jump = @ + 1]
  /\ UNCHANGED <<loss, client>>

----------------------------------------------------------------------------
(* A wait *)

\* The node does not vote, and says that this is the loss. Nobody asks about another one: its notes could make no difference.
Lasts(l) == loss[l].of # Nobody /\ ~node[loss[l].of].votes /\ node[loss[l].of].loss = l

\* It is known from now on that the node does not vote.   backends/quorum/markers.py: Markers.quarantine, backends/quorum/readmission.py: Readmission._admission
\* Without the rule "known" it counts from some earlier moment: the start of the client, an earlier loss.
\* One that lives for less than a moment has to do with one loss: another one begins for another loss.
Suspect(c, l) ==
  /\ l \in Heeded /\ Lasts(l) /\ client[c][l].age = None
  /\ \E age \in 0..(IF Rule("known") THEN 0 ELSE Window) :
       client' = [client EXCEPT ![c] = [(IF c \in Mortal THEN Blank ELSE @) EXCEPT ![l].age = age]]
  /\ UNCHANGED <<node, loss, saved, used>>

\* A node notes for how long the loss is known. The first note stays.   backends/redis/roll.lua
Note(c, l, n) ==
  /\ Rule("notes") /\ Lasts(l) /\ client[c][l].age # None /\ node[n].notes[l].age = None
  /\ node' = [node EXCEPT ![n].notes[l].age = client[c][l].age]
  /\ UNCHANGED <<loss, client, saved, used>>

\* What a node has noted for this loss; without the rule "named", for any loss of the same node.
Noted(n, l) == {node[n].notes[k] : k \in {k \in Losses : k = l \/ (~Rule("named") /\ loss[k].of = loss[l].of)}}
\* Without the rule "answered": a moment has passed since the question.
Since == IF Rule("answered") THEN 0 ELSE 1

\* For how long the loss is known: no longer than each node of a quorum says.   core/waits.py: vouched_age
\* All nodes are asked. A client that reaches fewer of them only learns less.
Learn(c, l) ==
  LET Ages(n) == {note.age : note \in Noted(n, l)} \ {None}
      enough == IF Rule("age vouched") THEN Needed ELSE 1
      vouched == {age \in 0..Window : Cardinality({n \in Nodes : \E own \in Ages(n) : own >= age}) >= enough}
  IN
  /\ Lasts(l) /\ client[c][l].age # None /\ vouched # {}
  /\ Older(Top(vouched), Since) > client[c][l].age
  /\ client' = [client EXCEPT ![c][l].age = Older(Top(vouched), Since)]
  /\ UNCHANGED <<node, loss, saved, used>>

\* The others say how long that lasts which they hold. Something that has not come to them yet, they may know of or not.
\* That they know of the rest is shown by Quorum.tla.   backends/quorum/readmission.py: Readmission._measure
Measure(c, l) ==
  LET forgot == {k \in Losses : loss[k].of = loss[l].of} IN
  /\ Lasts(l) /\ client[c][l].age # None /\ client[c][l].left = None
  /\ Rule("window") => client[c][l].age >= Window
  /\ \E unknown \in SUBSET {k \in forgot : loss[k].due > 0} :
       client' = [client EXCEPT ![c][l].left = Top({0} \cup {loss[k].left : k \in forgot \ unknown})]
  /\ UNCHANGED <<node, loss, saved, used>>

\* A node notes how long is left. Of several ends the nearest stays.   backends/redis/roll.lua
NoteEnd(c, l, n) ==
  /\ Rule("notes") /\ Lasts(l) /\ client[c][l].left # None
  /\ node[n].notes[l].left = None \/ client[c][l].left < node[n].notes[l].left
  /\ node' = [node EXCEPT ![n].notes[l].left = client[c][l].left]
  /\ UNCHANGED <<loss, client, saved, used>>

\* How long is left: no less than each node of a quorum says.   core/waits.py: vouched_end
LearnEnd(c, l) ==
  LET Known(n) == {note.left : note \in Noted(n, l)} \ {None}
      Lefts(n) == IF Known(n) = {} /\ ~Rule("lacking") THEN {0} ELSE Known(n)
      enough == IF Rule("end vouched") THEN Needed ELSE 1
      vouched == {left \in 0..(Window + Ttl) : Cardinality({n \in Nodes : \E own \in Lefts(n) : own <= left}) >= enough}
  IN
  /\ Lasts(l) /\ client[c][l].age # None /\ vouched # {}
  /\ client[c][l].left = None \/ Shorter(Least(vouched), Since) < client[c][l].left
  /\ client' = [client EXCEPT ![c][l].left = Shorter(Least(vouched), Since)]
  /\ UNCHANGED <<node, loss, saved, used>>

\* The wait is over: the node gets a roll.   backends/quorum/readmission.py: Readmission._readmit_one, backends/redis/enroll.lua
Readmit(c, l) ==
  LET n == loss[l].of IN
  /\ client[c][l].left = 0 /\ ~node[n].votes
  /\ Rule("mark") => Lasts(l)
  /\ Change(n, [node[n] EXCEPT !.votes = TRUE])
  /\ UNCHANGED <<loss, used>>

----------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E n \in Nodes : Lose(n) \/ GoBack(n) \/ Save(n) \/ Jump(n)
  \/ \E c \in Clients, l \in Losses :
       \/ Suspect(c, l) \/ Learn(c, l) \/ Measure(c, l) \/ LearnEnd(c, l) \/ Readmit(c, l)
       \/ \E n \in Nodes : Note(c, l, n) \/ NoteEnd(c, l, n)

Spec == Init /\ [][Next]_vars
AllAlike == {p @@ q @@ r : p \in Permutations(Nodes), q \in Permutations(Mortal), r \in Permutations(Clients \ Mortal)}

\* A node votes only when everything that it forgot is over.
NothingForgotten == \A l \in Losses : loss[l].of # Nobody /\ node[loss[l].of].votes => loss[l].left = 0
\* No promise, but what must not be so: a node that has lost its memory never votes again.
NeverHeals == \A l \in Losses : loss[l].of # Nobody => ~node[loss[l].of].votes
=============================================================================
