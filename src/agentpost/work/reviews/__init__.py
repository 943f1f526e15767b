"""Reviews: what the owner of a capability should look into (CAP-6).

board      the review queue of the room: what stands in it, what is added, merged and closed
triggers   what becomes a case at this gateway
reporter   cases at this gateway, counted by cause until they are worth an item, and brought to the coordinator
"""
