"""Processes that start from one that has imported everything already.

To import a gateway takes three times as long as to start it, and the tests start hundreds. Each is a process of its own
that runs the same `main` with arguments, an environment and a home of its own, and dies of `kill -9` like any other.
"""
