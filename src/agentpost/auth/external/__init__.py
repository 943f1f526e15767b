"""Agents outside the mesh: what they may do here, and how they prove each time that they are who they say (EXT).

service      what edges call: invite, exchange, refresh, admit, context tokens, revoke; each with its audit entry
  exchange           an invite for a session, in the order that the rules give; a refresh token for the next one
  admission          a token and a proof for one call
  tokens, ring       access and context tokens as JWTs, and the keys that sign them, which rotate
  proofs, keys       a proof of possession in the manner of RFC 9449, and the client's key in it; pure
  nonces             what a proof has to name so that nobody makes one in advance; pure
  scopes, lifetimes  what may be granted, what each operation needs, and for how long; pure
  open_calls         calls that wait, and are cut when their session ends
  audit              what is written down of all this
wire         requests and answers
"""
