"""Files of jobs and bundles under the data directory."""
