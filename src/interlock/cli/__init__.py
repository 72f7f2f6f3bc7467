"""The command line. `main` is the door; each verb has a file of its own, loaded only when that verb is called.

Rules of the package: what was asked for goes to stdout, our words about trouble go to stderr as one line `interlock: …`,
and no output ever holds a token or a password. Exit codes are in `exits`.
"""
