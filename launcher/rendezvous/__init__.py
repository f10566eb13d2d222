"""Rendezvous of the agents of an attempt: mutually authenticated messages, the rounds, and the store of the ranks.

It may import files, errors and torch.

- `protocol`: who takes part: joining, refusals, who was not reached
- `leader_search`: finds the leader among what listens on the candidate ports
- `members`: the agents of a round, and the errors of a rendezvous
- `ports`: ports and secret of an attempt, derived from the run's secret
- `interfaces`: addresses of this machine's network interfaces
- `handshake`: both ends of a connection prove that they know a secret
- `channel`: authenticated messages between two agents
- `hub`: the leader's connections to all other agents
- `round_files`: the rounds as files, where agents find the leader again
- `store`: the TCPStore of the ranks, closed to others
- `rank_environment`: RANK, WORLD_SIZE, MASTER_ADDR and the launcher's own variables of a rank
"""
