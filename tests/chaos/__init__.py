"""Real nodes under fault, several client processes, one history, judged by `interlock.testing.history`.

    python -m tests.chaos --minutes 10                 every kind in turn
    python -m tests.chaos --kind kill,pause --faults 1000
    python -m tests.chaos --kind mixed+jump --minutes 5
    python -m tests.chaos --check FILE...              judge histories again that were written before

`promises` says what each kind of fault does and which rules hold under it, `controller` runs a cluster with `worker` processes
and the `register` that they count in, `faults` does the damage, `report` judges.
"""
