"""From records to minibatches, by the user's ``feed``."""
