"""HTTP. Two doors that share no route: the public one on TCP, and the operator's on a socket inside the home.

public     what other machines may ask
joining    the handshake
external   agents outside the mesh: sessions, and what they call; `external_operator` is the operator's side
room_gate  the room over WebSocket, behind a gate
operator   what the owner of the home may ask; the socket's permissions are the authorisation
errors     a refusal as a response
openapi    the documents of both doors
guarded    the server of a port, with its bounds; also for a mailbox on a port of its own
patience   how long a request may take to arrive
server     both doors around one gateway, until it is told to stop
"""
