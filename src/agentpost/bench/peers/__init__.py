"""The same round trip over other people's queues, for comparison: sent, accepted, processed, seen by the sender.

Each peer is used as its own documentation recommends for throughput: batches, pipelines, one connection a side. Every
message is durable before it is acknowledged, as far as the peer can do that, and leaves an accepted and a processed
record.
"""
