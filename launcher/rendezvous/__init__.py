"""Rendezvous of the agents of an attempt: mutually authenticated messages, the rounds, and the store of the ranks.

It may import schedulers, runs and what is below them, and torch.

- `rounds`: a round: its members and their ranks; how members find the leader; which rounds have begun
- `signed_channel`: how messages between agents pass: connections that prove the secret, frames with a MAC; the
  leader's hub, which serves all others
- `store`: the TCPStore of the ranks, and the proxy that keeps other users and hosts out
"""
