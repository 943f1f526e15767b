-- When the next try is due is known to whoever tries: nobody asks the ledger for it.
DROP INDEX ledger_waiting;
