"""What the api does by itself: delivers launch intents, watches masters, clears away what is over."""
