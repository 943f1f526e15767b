"""The delegation directory (OPS-8): one policy in the room, a copy in each agent's IDENTITY.md.

records   the policy and its acknowledgements as records of the room, and back
desk      show, set, apply, acknowledge; who is told, and what is wrong
"""
