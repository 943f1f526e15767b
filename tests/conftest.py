"""What every test has: the rule ledger, an order, and pytester for the tests of the ledger itself."""

import functools
import gc

import httpx._transports.default as httpx_transports

pytest_plugins = ["pytester", "tests.plugins.rule_ledger", "tests.plugins.waiting_first"]

# Every client reads the certificates of the machine, which takes as long as a test; all tests of a process share them.
httpx_transports.create_ssl_context = functools.cache(httpx_transports.create_ssl_context)


def pytest_collection_finish() -> None:
    """Thousands of tests that are there for good need not be looked through again and again for garbage."""
    gc.collect()
    gc.freeze()
