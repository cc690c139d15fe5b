"""The command line of ElasticDL."""
