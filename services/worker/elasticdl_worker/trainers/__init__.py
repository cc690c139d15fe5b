"""What runs the user's model, one package for each framework."""
