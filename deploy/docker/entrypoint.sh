#!/bin/sh
# Takes secrets from files: ELASTICDL_X_FILE=/run/secrets/x becomes ELASTICDL_X. Then it becomes the command.
set -eu

for name in CLUSTER_SECRET NODE_TOKEN DATABASE_URL REDIS_URL; do
    eval "file=\${ELASTICDL_${name}_FILE:-}"
    if [ -n "$file" ]; then
        if [ ! -r "$file" ]; then
            echo "error: ELASTICDL_${name}_FILE=$file cannot be read" >&2
            echo "  fix: run deploy/docker/make-secrets.sh, and mount the secret" >&2
            exit 64
        fi
        value=$(cat "$file")
        export "ELASTICDL_${name}=$value"
        unset "ELASTICDL_${name}_FILE"
    fi
done

exec "$@"
