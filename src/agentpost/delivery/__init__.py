"""The engine: everything that happens to a message between two agents. It takes clock, chance, store, room, links and
runtimes as interfaces (`ports`) and calls nothing else, so that the simulation runs this very code.

    publish     an agent's words → a sealed event in the outbox, with a delivery for each recipient
    placing     the room → which gateway has which recipient
    sealing     content → what only the gateways of the recipients can open (`content`, `wrapping`)
    feed        the outbox → each reader's stream, with a signed head
    intake      a batch of events → what it means here: ACKs for local agents, changes of our own deliveries
    reader      a stream → inbox, ledger, cursor and `accepted`, in one transaction
    mirror      the outboxes of nodes that sleep or cannot be dialled, kept for their readers
    joint       both of these from one reading, where the owner of the outbox is linked
    fetch       payloads that were too large for their events, chunk by chunk
    link        one conversation between two gateways: frames in, frames out (`frames`, `heads`)
    hub         all of them, and which outbox is read through which
    agents      who lives here; the room knows of them
    dispatch    the inbox → the agent, through its runtime → reply and `processed` (`worker`, `lanes`)
    turns       one turn of an agent: what it is handed (`briefing`), and what follows from its answer
    pull        the same for agents that fetch their mail themselves
    retry       timers: resend, dead letter, incident
"""
