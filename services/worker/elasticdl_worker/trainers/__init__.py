"""What trains: one package for each framework, beside it what trainers of any framework share."""
