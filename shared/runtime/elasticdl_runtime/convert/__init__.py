"""Between our own types and the messages of the wire, for servicers and clients."""
