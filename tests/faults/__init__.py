"""Faults on purpose: what the tests do to the disk under SQLite.

disk.py        a disk that loses power, fills up or breaks at a chosen write, and what it holds afterwards
test_disk.py   the disk's own tests, on plain SQLite: it sees the planted bugs and clears what is sound
"""
