"""The room: one Yjs document of metadata that all gateways share, and of which each writes only its own part.

document      the room of a gateway: read, write, receive, load
  guard               what every update has to pass; wire, schema, records are its steps
  wire                Yjs updates as data
  schema              the maps, their records and their limits
  records             what is signed, and how
  members             who is a member: a pure function of the statements and the root key
  write_rules         who may write what
  table, snapshots    the records that are shown, and which are believed; the router's view of them
  membership          the members as other parts ask for them
  crdt                the only module that touches pycrdt
copies        copies of what the store decides: invites, cursors
journal       the room on disk: updates, and now and then all of them as one
sync          y-protocols as sessions without I/O
  relay               what a peer that has seen more can tell a seed that was away
  awareness           who is connected
presence      heartbeats, and the status that follows from them
"""
