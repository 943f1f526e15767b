"""Faults on purpose: what the tests do to the disk under SQLite, and to the process.

disk.py         a disk that loses power, fills up or breaks at a chosen write, and what it holds afterwards
scenarios.py    what a gateway does to its store, operation by operation, the same in every run
referee.py      what a scenario must lead to, and whether what a disk has kept is that

test_disk.py               the disk's own tests, on plain SQLite: it sees the planted bugs and clears what is sound
test_store_power_loss.py   the power goes at every write point of every scenario
test_store_disk_faults.py  the disk is full, or breaks, at every write point of every scenario
test_store_kill.py         the process is killed at any moment
"""
