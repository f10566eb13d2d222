"""Rendezvous of the agents of an attempt: mutually authenticated messages, the rounds, and the store of the ranks.

It may import files, errors and torch.

- `protocol`: joining a round: the `hello`, `begin` and `refused` messages, the timeout, the agents that are missing
- `leader_search`: connects to the leader: tries the candidate ports, and tells why none answered
- `members`: Member and Rendezvous (the agents of a round, in rank order), and RendezvousError
- `ports`: ports and secret of an attempt, derived from the run's secret
- `interfaces`: addresses of this machine's network interfaces
- `channel`: the wire format: mutual proof of a secret, then framed and authenticated JSON messages
- `hub`: the leader's connections to all other agents
- `round_files`: the rounds as files, where agents that lost the leader find the new one
- `store`: the TCPStore of the ranks, and the proxy that keeps other users and hosts out
- `rank_environment`: RANK, WORLD_SIZE, MASTER_ADDR and the launcher's own variables of a rank
"""
