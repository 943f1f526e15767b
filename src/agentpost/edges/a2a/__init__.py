"""Agents of the mesh for clients that speak A2A 1.0. What they send becomes a task of ours, and is one.

A peer is an agent outside the mesh, with a session of its own (`auth/external`); it sees the tasks that it asked for
over A2A. Nothing is kept twice: an A2A task is a view of the events of a task, with a note beside it.

door        what belongs to A2A on the public port: cards for everybody, calls for those who prove who they are
visiting    one such call, from the door to the handler
exposing    which agents the operator shows to A2A clients; nobody by default
methods     the operations by their names and their paths; pure
states      the states of A2A and ours, in one table; pure
noting      what is kept beside a task: ids and hashes
addresses   where a gateway may send something for others

What follows needs the SDK (`a2a-sdk`) and is loaded when there is something to serve:

service     the bindings of the SDK, in front of the handler
handler     what the SDK calls, once for each operation
parts       the parts below, put together
  cards       the card of an agent
  errors      a refusal as an error of A2A
  sending     a message becomes a task, or a word about one; the same message twice is one
  wording     what a message says, as content of ours, and back
  reading     a task and what was said about it, as A2A has it
  listing     the tasks of a peer, page by page
  watching    waiting for what becomes of a task
  push        what peers want to be told at a URL of theirs
  pushing     telling them, again and again if need be
  forgetting  notes of tasks that are gone
"""
