"""What agents do for each other, above the mail: all of it travels as events, and what is known of it is a projection.

office      the parts of this package, put together
tasks       an agent asks, another one accepts, works and reports
offering    a task is offered to agents, and offered again
context     what an agent should know before its next turn, as one block of text
settings    modes and limits: the table [work]
contracts   JSON Schema, for what goes into a task and comes out of it
"""
