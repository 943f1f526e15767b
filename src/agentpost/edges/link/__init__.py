"""The links between gateways on WebSockets: mail goes here, beside the room's own connection.

serve    the door: a peer with a ticket for `ansible-link`
dial     the other end: a link to every seed, again and again
carry    what both do with an open connection
"""
