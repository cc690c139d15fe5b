#!/bin/sh
# Takes secrets from files: ELASTICDL_X_FILE=/run/secrets/x becomes ELASTICDL_X. Then it becomes the command.
# As root (the node) it reads them where nobody else can, and the command runs as user 10001 with the capabilities that
# give jobs users of their own.
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

if [ "$(id -u)" = 0 ]; then
    kept=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setpcap,+setuid
    exec setpriv --reuid=10001 --regid=10001 --clear-groups --bounding-set="$kept" --inh-caps="$kept" \
        --ambient-caps="$kept" --no-new-privs "$@"
fi
exec "$@"
