"""What every test has: the rule ledger, and pytester for the tests of the ledger itself."""

pytest_plugins = ["pytester", "tests.plugins.rule_ledger"]
