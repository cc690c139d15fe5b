"""Asyncio gRPC: frames, services bound from descriptors, deadlines, tokens, errors."""
