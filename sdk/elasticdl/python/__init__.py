"""Import paths of the original ElasticDL, kept for model modules written for it."""
