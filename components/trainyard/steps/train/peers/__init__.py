"""What the workers of a gang share: ranks, settings, the proof of membership and the heartbeat of their launcher."""
