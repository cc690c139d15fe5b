"""Background tasks of the api: deliver launch intents, watch masters, clear away what is over."""
