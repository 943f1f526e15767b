"""Capabilities: what an agent offers to all others, and what the others may expect of it.

manifest      what is published, with the contract of its skill pair, signed by the owner's gateway
secrets       what must not be in a manifest or a bundle
records       a manifest as the two records of the room, and whether those fit together
book          the manifests that this gateway keeps: its own, and those that others sent
desk          publish and unpublish
catalog       list, show, health
contracts     what goes into tasks and comes out of them, held to the manifest
"""
