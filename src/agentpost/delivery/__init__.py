"""The engine: everything that happens to a message between two agents. It takes clock, chance, store, room, links and
runtimes as interfaces (`ports`) and calls nothing else, so that the simulation runs this very code.

    publish     an agent's words → a sealed event in the outbox, with a delivery for each recipient
    feed        the outbox → each reader's stream, with a signed head
    reader      a stream → inbox, ledger, cursor and `accepted`, in one transaction
    mirror      the outboxes of nodes that sleep or cannot be dialled, kept for their readers
    link        one conversation between two gateways: frames in, frames out
    dispatch    the inbox → the agent, through its runtime → reply and `processed`
    retry       timers: resend, dead letter, incident
"""
