"""The room: one Yjs document of metadata that all gateways share, and of which each writes only its own part.

document      the room of a gateway: read, write, receive, load
  guard               what every update has to pass; wire, schema, records, authority are its steps
  wire                Yjs updates as data
  schema              the maps, their records and their limits
  records             what is signed, and how
  authority           who may write what
  keys                whose key is whose: pinned keys and admissions
  table, snapshots    the verified records; the router's view of them
  crdt                the only module that touches pycrdt
copies        copies of what the store decides: invites, cursors
journal       the room on disk: updates, and now and then all of them as one
sync          y-protocols as sessions without I/O
  relay               what a peer that has seen more can tell a seed that was away
  awareness           who is connected
presence      heartbeats, and the status that follows from them
"""
