"""What agentpost measures about itself. Every figure that can be is printed next to a limit from the same run.

measure    the shape of a figure, and best-of-several
events     events of a known size
protocol   decoding, validating, routing
store      durable appends, reads, and what size does to them
room       updates checked and merged, growth over a month, a join
  fleet              the nodes that write it
roundtrip  between two gateways, next to Redis and NATS
sweep      the coordinator's sweep over many open tasks, and what mail notices of it
crowd      many gateways, everybody writes to everybody
idle       what a gateway costs that has nothing to do
pipeline   segments to gold, a refresh, how fresh `watch` is, how fast it starts
"""
