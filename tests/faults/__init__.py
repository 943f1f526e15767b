"""Faults on purpose: what the tests do to the disk under SQLite, and to the process.

disk.py         a disk that loses power, fills up or breaks at a chosen write, and what it holds afterwards
playing.py      scenarios: what they are, and how one is played on such a disk
words.py        what is said in them, the same in every run
operations.py   what a gateway does to its store, each with the answer of a good disk
scenarios.py    rows of those operations
referee.py      what a scenario must lead to, and whether what a disk has kept is that
points.py       every named cut point: before and after each commit and each send
lives.py        three engines on such disks, of which one dies at a named point

test_disk.py               the disk's own tests, on plain SQLite: it sees the planted bugs and clears what is sound
test_store_power_loss.py   the power goes at every write point of every scenario
test_store_disk_faults.py  the disk is full, or breaks, at every write point of every scenario
test_store_kill.py         the process is killed at any moment
test_points.py             the list of cut points is held against the source
test_lives.py              whole lives of messages, with a death at each cut point of sender, seed and receiver
test_let_pass.py           when mail may follow an agent to another gateway
test_clock_steps.py        the time of day is set while timers run

Faults between real gateway processes are in tests/processes.
"""
