"""What the mesh says, and what follows from it. Pure: no clock, no chance, no disk, no socket.

errors        every way to say no: codes, statuses, hints
ids, timestamps      what names and times look like
payloads      what each kind of event says
envelope      the head that all events share, and what makes an event valid
codec         events to bytes and back, one by one and in frames
  plain               free-form values that may travel
  skim                where msgpack values end, for what the decoder gives up on
machine       a state machine as data, and the function that walks it
  lifecycle, delivery the life of one delivery, and its record
  tasks               the life of a task
  mailbox             the mailbox protocol's messages and states
routing       who gets an event, and which gateway engages them
  snapshot            the room as the router sees it
backoff       how long to wait before trying again
headers       the header convention of free-text messages
"""
