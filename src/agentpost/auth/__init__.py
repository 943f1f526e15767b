"""How a node is let in, and what is remembered of it. Touches nothing but the store; time and chance are passed in.

joining       the service that edges call: invite, challenge, exchange, redeem, revoke, each with its audit entry
  invites             leave for one node to join once
  challenge           what a node has to sign, and the proof that it did
  exchange            an invite, or a known key, for a ticket; the order of AUTH-5
  tickets             the ticket itself: a JWT for one connection
  redemption          a ticket for an open door; here the invite is used up and the key pinned
  limits              how often somebody may try
  audit, guard        what is written down; what must not be used twice
external      agents outside the mesh: sessions, proofs, scopes; its `__init__` is a map
wire          the requests and answers of the handshake
jose          signed JSON tokens, as strangers send them
signing       signatures with a purpose, keys as text, and what a name may look like
"""
