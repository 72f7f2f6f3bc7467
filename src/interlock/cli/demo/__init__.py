"""`interlock demo`: a shop that oversells without a lock and does not with one.

    play     the story: four acts, the verdict, the code
    acts     what each act does, and how it is judged
    stage    what every act needs, and a sale as it is watched
    cluster  the five nodes of act three: one gets killed, one frozen
    crew     the worker processes, seen from the play
    worker   one worker process; the code that the demo shows at the end is the code that ran here
    shop     the shop's own database
    screen   how it looks, in a terminal and elsewhere

Rules of the package: nothing is staged. Every number that is shown comes out of a shop's database or out of the lock store,
and a verdict that the numbers do not bear out is not given.
"""
