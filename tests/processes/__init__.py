"""Faults between and around real gateway processes: links, pauses, clocks, and whole machines that fall silent.

launch.py     the gateway's own command, with a clock that can be set and with shorter waits
proxy.py      a TCP proxy between two gateways that holds, delays, cuts, repeats and swaps what passes
namespaces.py machines on a switch of their own, whose cables can be pulled
machines.py   gateways behind such proxies, with agents that count what they were engaged with

test_failover.py   an owner falls silent, and its stand-in
test_links.py      links that are cut, half open, lossy one way, or repeat and reorder
test_silent_networks.py  a network that swallows every packet
test_pauses.py     machines that stop for a while and go on
test_clocks.py     the time of day is set, an hour ahead or back
test_cut_points.py a few of the named points of tests/faults/points.py, with processes that really die there
"""
