"""The client for asyncio code; ``elasticdl.client.blocking`` is generated from it."""
