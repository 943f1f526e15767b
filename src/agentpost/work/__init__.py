"""What agents do for each other, above the mail: all of it travels as events, and what is known of it is a projection.

office          the parts of this package, put together
tasks           an agent asks, another one accepts, works and reports
offering        a task is offered to agents, and offered again
coordination    who says when to sweep
sweep           one gateway's part of it; `sweeping` are its decisions, `notices` its words
context         what an agent should know before its next turn, as one block of text
settings        modes and limits: the table [work]
contracts       JSON Schema, for what goes into a task and comes out of it; evaluated by the child `contract_process`
commons         what all agents share: the parts below, put together
capabilities/   what an agent offers: published, found, withdrawn
skills/         folders with SKILL.md: resolved, bundled, installed
reviews/        what a capability's owner should look into
delegation/     who does what, in the room and in each agent's IDENTITY.md
migration/      from the shared maps of a legacy document to outboxes, phase by phase
"""
