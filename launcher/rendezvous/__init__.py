"""Rendezvous of the agents of an attempt: mutually authenticated messages, the rounds, and the store of the ranks.

It may import files, errors and torch.

- `protocol`: joining a round: how members find the leader (ports, addresses); its messages; who is missing
- `rounds`: a round: its members and their ranks, the environment of each rank, and the files that name a round's leader
- `channel`: authenticated connections between agents: a channel, and the hub of the leader that serves those of all
  others
- `store`: the TCPStore of the ranks, and the proxy that keeps other users and hosts out
"""
