"""Training with parameter servers, in any framework: pull, compute, push."""
