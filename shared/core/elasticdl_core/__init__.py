"""The pure core: words, rules and state machines of ElasticDL. Standard library only."""
