"""The durable memory of a gateway. Nothing above this package knows SQL.

interface     what the engine may ask of a store
values        what goes in and comes out
sqlite        the store on a disk: joins the parts below, with sqlite_external, _members, _mirrors, _payloads
  home, identity      the directory, its lock, and the node's keys
  database            one connection, and SQLite's errors in our words; the only module that touches APSW
  writer, jobs        the one who writes, on the loop or in a thread; many jobs in one commit
  transaction         the ends of the outbox and the inbox, rows gathered for bulk writing
  tail                the end of the outbox in memory
  outbox, streams     the outbox as a whole, and what each of its readers gets of it
  inbox, deliveries   what was taken for whom; what became of what was sent
  mirrors             the outboxes of other nodes, kept for their readers
  agents, incidents   the agents of this gateway; what a person should look at
  compaction, blobs   pruning; large content
  payload_names       which events name large content, and when it goes
  joining             invites, and the nodes whose keys are known
  room_log            the updates of the room
  queries, sql/, migrations/   the SQL, by name and by version
memory        the same store without a disk, for tests and simulation
  memory_outbox, memory_inbox, memory_streams, memory_deliveries, memory_mirrors, memory_agents   the same parts
  memory_keeping      its replay guard, audit log, room and blobs
  memory_joining      its invites and known nodes
integrity     check and back up a home while its gateway runs
rules         what both stores refuse, and why
"""
