"""The contract of Forebay: what producer and worker share, and nothing that only one needs."""
