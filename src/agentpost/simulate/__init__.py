"""Fleets that never ran: lakes made from a seed, with known faults, to measure and to test the pipeline with.

plan.py        what a fleet is: size, names, keys, who is slow and who is away
talk.py        conversations that obey the rules, as columns of numbers (rows.py)
faults.py      conversations and signals that do not; damage.py for what is wrong with files
templates.py   one event of each shape by the protocol's encoder; bodies.py fills in all others
columns.py     numbers to the columns of a segment; segments.py seals it
facts.py       the change logs
fleet.py       all of it, slice of time by slice of time, in worker processes
"""
