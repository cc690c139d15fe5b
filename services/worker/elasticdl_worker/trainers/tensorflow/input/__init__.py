"""From the records of a task to minibatches: the user's ``feed``, traced once."""
