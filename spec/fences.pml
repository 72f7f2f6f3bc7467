/* The fence of the quorum lock once more, for another checker: a second opinion on Quorum.tla, without its symmetries.
 *
 * Leases vanish at any time, requests are lost, holders die without releasing; no clock. Three nodes, three attempts.
 * backends/redis/claim.lua, backends/redis/extend.lua, backends/quorum/vote.py: Voting.claim, Voting._agree
 *
 *   spin -a fences.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m1000000
 *   spin -a -DNO_AGREEMENT ...   the highest fence is not written back: must fail
 *   spin -a -DNO_OWNER ...       written back whoever holds the lock by now: must fail
 */
#define NODES 3
#define NEEDED 2
#define ATTEMPTS 3
#define VANISH 1

byte owner[NODES];     /* 0: nobody */
byte count[NODES];
byte highest;          /* of all fences that were handed out */
int handed;            /* which ones, a bit each */
byte vanished;

proctype attempt(byte me) {
  byte answer[NODES], fence, have, votes, i, n, low = highest;  /* a grant from now on must be higher */

  /* The question, to the nodes in an order of its own; one that is passed over was lost. */
  for (i : 0 .. NODES - 1) {
    n = (me + i) % NODES;
    if
    :: atomic { owner[n] == 0 -> owner[n] = me; count[n]++; answer[n] = count[n]; votes++ }
    :: true
    fi
  }
  if
  :: votes < NEEDED -> goto leave
  :: else
  fi;
  d_step {
    for (n : 0 .. NODES - 1) { if :: answer[n] > fence -> fence = answer[n] :: else fi }
    for (n : 0 .. NODES - 1) { if :: answer[n] == fence -> have++ :: else fi }
    n = 0; i = 0; votes = 0
  }
#ifndef NO_AGREEMENT
  for (n : 0 .. NODES - 1) {
    if
    :: atomic { answer[n] != 0 && answer[n] != fence && have < NEEDED ->
         if
#ifdef NO_OWNER
         :: true ->
#else
         :: owner[n] == me ->
#endif
            if :: count[n] < fence -> count[n] = fence :: else fi; have++
         :: else
         fi }
    :: true
    fi
  }
  if
  :: have < NEEDED -> goto leave
  :: else
  fi;
#endif
  atomic {
    assert(fence > low && !(handed & (1 << fence)));
    handed = handed | (1 << fence);
    if :: fence > highest -> highest = fence :: else fi
  }

leave: /* or die here: a release that never arrives is passed over */
  skip;
  d_step { for (n : 0 .. NODES - 1) { answer[n] = 0 } fence = 0; have = 0; votes = 0; low = 0; i = 0; n = 0 }
  for (n : 0 .. NODES - 1) {
    if
    :: atomic { owner[n] == me -> owner[n] = 0 }
    :: true
    fi
  }
}

proctype vanish() {
  byte n;
  do
  :: atomic { vanished < VANISH -> vanished++; select(n : 0 .. NODES - 1); owner[n] = 0 }
  :: break
  od
}

init {
  byte i;
  atomic { for (i : 1 .. ATTEMPTS) { run attempt(i) } run vanish() }
}
