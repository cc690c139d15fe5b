"""The wire protocols of ElasticDL; `.proto` files and the code generated from them."""
