"""The member's side of training in a group: all members hold the whole model and sum their gradients (AllReduce)."""
